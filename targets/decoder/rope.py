"""Rotary position embedding in the rotate-half layout, as configs describe it.

The frequencies are transformers' own. Angles are computed in float32 from the positions themselves,
so no table limits the context and a bfloat16 model keeps exact positions.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.norms import cast

DEFAULT, LINEAR, LLAMA3, YARN = "default", "linear", "llama3", "yarn"
PROPORTIONAL = "proportional"
FIRST_CONTEXT = "original_max_position_embeddings"

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines of rows, float32 [B, T, 1, head_dim] each."""


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

    def embedding(self, head_dim: int) -> "RotaryEmbedding":
        """The module that turns positions into tables."""
        return RotaryEmbedding(self.inv_freq(head_dim), self.attention_factor)

    def inv_freq(self, head_dim: int) -> Tensor:
        """Radians per position of each pair, float32 [head_dim / 2]."""
        return self.initialised(head_dim)[0]

    def initialised(self, head_dim: int, **changes: Any) -> tuple[Tensor, float]:
        """transformers' frequencies, and its attention factor: `attention_factor`, but where
        `changes` of its `rope_parameters` say otherwise."""
        from transformers import modeling_rope_utils as library  # slow to import

        plain = self.rope_type == DEFAULT  # has no function of its own there
        stated = {"rope_type": LINEAR, "factor": 1.0} if plain else {}
        config = library.RotaryEmbeddingConfigMixin()
        config.head_dim = config.hidden_size = head_dim
        config.num_attention_heads = 1
        config.max_position_embeddings = self.context
        config.rope_parameters = asdict(self) | {"rope_theta": self.theta} | stated | changes
        return library.ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProportionalRope(Rope):
    """Only this share of the pairs turns; the others keep their values."""

    rope_type: str = PROPORTIONAL
    partial_rotary_factor: float = 1.0


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions, times `attention_factor`."""

    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor, attention_factor: float = 1.0) -> None:
        super().__init__()
        self.attention_factor = attention_factor
        self.register_buffer("inv_freq", inv_freq.float(), persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """`positions` int64 [B, T] -> the tables `apply_rotary` takes."""
        return self.tables(positions, self.inv_freq)

    def tables(self, positions: Tensor, inv_freq: Tensor) -> Rotary:
        """The same of frequencies float32 [head_dim / 2]."""
        angles = cast(positions, torch.float32).unsqueeze(-1).unsqueeze(-1) * inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate pairs (i, i + head_dim / 2) of `x` [B, T, heads, head_dim]; same shape and dtype.

    Halves are taken by slicing: `chunk` would lower to `aten::split_copy`, which the CUDA backend
    has no kernel for.
    """
    cos, signed_sin = rotary
    half = x.shape[-1] // 2
    wide = cast(x, torch.float32)
    swapped = torch.cat((wide[..., half:], wide[..., :half]), dim=-1)
    return cast(wide * cos + swapped * signed_sin, x.dtype)


def read_rope(config: ConfigSection) -> Rope:
    """`rope_parameters`, or the older `rope_scaling` and `rope_theta` beside it.

    Raises UnsupportedError for a type without a fixed table (dynamic, longrope: one artifact has
    one), for a partly rotated head and for one table per kind of layer, CheckpointError for odd
    values.
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
    rope = Rope(
        theta=theta,
        rope_type=YARN,
        factor=section.number("factor"),
        context=_first_context(config, section),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
    )
    names = [name for name in ("mscale", "mscale_all_dim") if section.values.get(name)]
    names += ["attention_factor"] if section.has("attention_factor") else []
    stated = {"attention_factor": None} | {name: section.number(name) for name in names}
    try:
        return replace(rope, attention_factor=rope.initialised(2, **stated)[1])
    except (ArithmeticError, ValueError) as error:  # of logarithms and roundings
        raise CheckpointError(f"{config.where}: odd numbers of a yarn rope ({error})") from error


def _first_context(config: ConfigSection, section: ConfigSection) -> int:
    for place in (config, section):
        if place.has(FIRST_CONTEXT):
            return place.count(FIRST_CONTEXT)
    return config.count("max_position_embeddings")
