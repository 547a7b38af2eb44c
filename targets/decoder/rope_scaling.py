"""Rotary frequencies for contexts longer than those of the first training, as configs name them.

As in transformers 5.17 `modeling_rope_utils.py`. Types whose frequencies change while a sequence
grows (dynamic, longrope) are refused: one artifact has one table.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.rope import RotaryEmbedding, default_inv_freq

DEFAULT, LINEAR, LLAMA3, YARN = "default", "linear", "llama3", "yarn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """Base and scaling of one decoder's rotary embedding; what a type does not use has no effect.

    `context` is the number of positions that the unscaled frequencies were trained on,
    `attention_factor` multiplies cosines and sines.
    """

    theta: float
    rope_type: str = DEFAULT
    factor: float = 1.0
    context: int = 1
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    def embedding(self, head_dim: int) -> RotaryEmbedding:
        """The module that turns positions into tables."""
        return RotaryEmbedding(self.inv_freq(head_dim), self.attention_factor)

    def inv_freq(self, head_dim: int) -> Tensor:
        """Radians per position of each pair, float32 [head_dim / 2]."""
        inv_freq = default_inv_freq(head_dim, self.theta)
        if self.rope_type == DEFAULT:
            return inv_freq
        if self.rope_type == LINEAR:
            return inv_freq / self.factor
        kept = (
            self._llama3_kept(inv_freq) if self.rope_type == LLAMA3 else self._yarn_kept(head_dim)
        )
        return (1 - kept) * inv_freq / self.factor + kept * inv_freq

    def _llama3_kept(self, inv_freq: Tensor) -> Tensor:
        """Share of each frequency that stays: by how often it turns in the first context."""
        turns = self.context * inv_freq / (2 * math.pi)
        spread = self.high_freq_factor - self.low_freq_factor
        return ((turns - self.low_freq_factor) / spread).clamp(0, 1)

    def _yarn_kept(self, head_dim: int) -> Tensor:
        """The same by the pair's index, from one number of turns to the other."""
        low, high = (
            self._yarn_pair(head_dim, self.beta_fast),
            self._yarn_pair(head_dim, self.beta_slow),
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        width = high - low or 0.001  # transformers': a step where both are the same pair
        pair = torch.arange(head_dim // 2, dtype=torch.float32)
        return 1 - ((pair - low) / width).clamp(0, 1)

    def _yarn_pair(self, head_dim: int, turns: float) -> float:
        """The pair, as a fraction, that turns so often in the first context."""
        wavelength = self.context / (2 * math.pi * turns)
        return head_dim * math.log(wavelength) / (2 * math.log(self.theta))


def read_rope(config: ConfigSection) -> Rope:
    """`rope_parameters`, or the older `rope_scaling` and `rope_theta` beside it.

    Raises UnsupportedError for a type without a fixed table, for a partly rotated head and for one
    table per kind of layer, CheckpointError for odd values.
    """
    key = "rope_scaling" if config.section("rope_scaling").values else "rope_parameters"
    section = config.section(key)
    if any(isinstance(value, dict) for value in section.values.values()):
        raise UnsupportedError(f"{config.where}: {key} by kind of layer is not supported")
    check_whole_heads(config, section)
    theta, kind = rope_base(config, section), rope_type(section)
    match kind:
        case "default":
            return Rope(theta=theta)
        case "linear":
            return Rope(theta=theta, rope_type=LINEAR, factor=section.number("factor"))
        case "llama3":
            return _read_llama3(config, section, theta)
        case "yarn":
            return _read_yarn(config, section, theta)
    raise UnsupportedError(f"{config.where}: rope type {kind!r} is not supported")


def check_whole_heads(config: ConfigSection, section: ConfigSection) -> None:
    """Raise UnsupportedError where a config or its rope section rotates part of a head."""
    if any(s.number("partial_rotary_factor", 1.0) != 1.0 for s in (section, config)):
        raise UnsupportedError(f"{config.where}: partly rotated heads are not supported")


def rope_base(config: ConfigSection, section: ConfigSection) -> float:
    """The base of the frequencies, from the rope section or from beside it."""
    return section.number("rope_theta", config.number("rope_theta", 10000.0))


def rope_type(section: ConfigSection) -> str:
    """The type that a rope section names, under the newer or the older key."""
    return section.text("rope_type", section.text("type", DEFAULT))


def _read_llama3(config: ConfigSection, section: ConfigSection, theta: float) -> Rope:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if low >= high:
        raise CheckpointError(f"{config.where}: low_freq_factor {low} is not below {high}")
    return Rope(
        theta=theta,
        rope_type=LLAMA3,
        factor=section.number("factor"),
        context=_first_context(config, section),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _read_yarn(config: ConfigSection, section: ConfigSection, theta: float) -> Rope:
    if theta <= 1:
        raise CheckpointError(f"{config.where}: rope_theta {theta} is not above 1")
    factor = section.number("factor")
    return Rope(
        theta=theta,
        rope_type=YARN,
        factor=factor,
        context=_first_context(config, section),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        attention_factor=section.number("attention_factor", _yarn_attention(section, factor)),
        truncate=section.flag("truncate", True),
    )


def _yarn_attention(section: ConfigSection, factor: float) -> float:
    """How much longer vectors become, so that attention stays as sharp over more positions."""
    growth = 0.1 * math.log(max(factor, 1.0))
    if not (section.values.get("mscale") and section.values.get("mscale_all_dim")):
        return growth + 1.0
    above, below = section.number("mscale"), section.number("mscale_all_dim")
    return (above * growth + 1.0) / (below * growth + 1.0)


def _first_context(config: ConfigSection, section: ConfigSection) -> int:
    key = "original_max_position_embeddings"
    for place in (config, section):
        if place.has(key):
            return place.count(key)
    return config.count("max_position_embeddings")
