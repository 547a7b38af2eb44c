"""Rotary position embedding in the rotate-half layout, as configs describe it.

The frequencies come from transformers. Angles are computed in float32 from the positions
themselves, so no table limits the context and a bfloat16 model keeps exact positions.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.norms import cast

DEFAULT, LINEAR, LLAMA3, YARN = "default", "linear", "llama3", "yarn"
PROPORTIONAL, LONGROPE = "proportional", "longrope"
ORIGINAL_CONTEXT = "original_max_position_embeddings"

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines per row, float32 [B, T, 1, head_dim] each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """The base and scaling of a rotary embedding; fields that a type does not use have no effect.

    `context` is the number of positions that the unscaled frequencies were trained on.
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
        """Make the module that turns positions into tables."""
        return RotaryEmbedding(self.inv_freq(head_dim), self.attention_factor)

    def inv_freq(self, head_dim: int) -> Tensor:
        """Return the radians per position of each pair, float32 [head_dim / 2]."""
        return self.frequencies(head_dim)[0]

    @property
    def decision(self) -> dict[str, str]:
        """What the number of positions decided, and why; empty if nothing depends on it."""
        return {}

    def frequencies(self, head_dim: int, **overrides: Any) -> tuple[Tensor, float]:
        """Return transformers' frequencies, float32 [head_dim / 2], and its attention factor.

        `overrides` replace keys of transformers' `rope_parameters`.
        """
        from transformers import modeling_rope_utils as library  # slow to import

        is_default = self.rope_type == DEFAULT  # transformers has no function for it
        as_linear = {"rope_type": LINEAR, "factor": 1.0} if is_default else {}
        config = library.RotaryEmbeddingConfigMixin()
        config.head_dim = config.hidden_size = head_dim
        config.num_attention_heads = 1
        config.max_position_embeddings = self.context
        config.rope_parameters = asdict(self) | {"rope_theta": self.theta} | as_linear | overrides
        return library.ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProportionalRope(Rope):
    """Only the first `partial_rotary_factor` of the pairs is rotated."""

    rope_type: str = PROPORTIONAL
    partial_rotary_factor: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRope(Rope):
    """The frequency of each pair is divided by its own of `factors`."""

    rope_type: str = LONGROPE
    factors: tuple[float, ...]
    max_seq_len: int

    @property
    def decision(self) -> dict[str, str]:
        short = self.max_seq_len <= self.context
        words = ("short", "at most") if short else ("long", "more than")
        source = f"{self.max_seq_len} positions, {words[1]} the original {self.context}"
        return {"value": f"{words[0]} factors", "source": source}

    def frequencies(self, head_dim: int, **overrides: Any) -> tuple[Tensor, float]:
        tables = {"short_factor": list(self.factors), "long_factor": list(self.factors)}
        return Rope.frequencies(self, head_dim, **tables | overrides)


class RotaryEmbedding(nn.Module):
    """Computes cosines and sines of positions, multiplied by `attention_factor`."""

    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor, attention_factor: float = 1.0) -> None:
        super().__init__()
        self.attention_factor = attention_factor
        self.register_buffer("inv_freq", inv_freq.float(), persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """Turn `positions` int64 [B, T] into tables, float32 [B, T, 1, head_dim] each."""
        return self.tables(positions, self.inv_freq)

    def tables(self, positions: Tensor, inv_freq: Tensor) -> Rotary:
        """Return the tables for `inv_freq` float32 [head_dim / 2]."""
        angles = cast(positions, torch.float32).unsqueeze(-1).unsqueeze(-1) * inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate pairs (i, i + head_dim / 2) of `x` [B, T, heads, head_dim]; same shape and dtype.

    Halves are sliced because `chunk` would lower to `aten::split_copy`, for which the CUDA backend
    has no kernel.
    """
    cos, signed_sin = rotary
    half = x.shape[-1] // 2
    wide = cast(x, torch.float32)
    swapped = torch.cat((wide[..., half:], wide[..., :half]), dim=-1)
    return cast(wide * cos + swapped * signed_sin, x.dtype)


def read_rope(config: ConfigSection, head_dim: int = 0, max_seq_len: int = 0) -> Rope:
    """Read `rope_parameters`, or the older keys `rope_scaling` and `rope_theta`.

    The frequencies of some types depend on the length of a text. So that a token's do not, they are
    chosen by `max_seq_len`, the number of positions that will be used: dynamic has the plain ones
    up to the model's context, and longrope its short factors up to the original context, its long
    ones for any more. Without `max_seq_len` both are refused. Raises UnsupportedError for other
    types, for partly rotated heads and for parameters per kind of layer; CheckpointError for odd
    values.
    """
    key = "rope_scaling" if config.section("rope_scaling").values else "rope_parameters"
    section = config.section(key)
    if any(isinstance(value, dict) for value in section.values.values()):
        raise UnsupportedError(f"{config.where}: {key} by kind of layer is not supported")
    check_whole_heads(config, section)
    theta, name = rope_base(config, section), rope_type(section)
    match name:
        case "default":
            return Rope(theta=theta)
        case "linear":
            return Rope(theta=theta, rope_type=LINEAR, factor=section.number("factor"))
        case "llama3":
            return _read_llama3(config, section, theta)
        case "yarn":
            return _read_yarn(config, section, theta)
        case "dynamic" if max_seq_len:
            return _read_dynamic(config, section, theta, max_seq_len)
        case "longrope" | "su" if max_seq_len:
            return _read_longrope(config, section, theta, head_dim, max_seq_len)
    raise UnsupportedError(f"{config.where}: rope type {name!r} is not supported")


def check_whole_heads(config: ConfigSection, section: ConfigSection) -> None:
    """Raise UnsupportedError if a config or its rope section rotates only part of a head."""
    if any(s.number("partial_rotary_factor", 1.0) != 1.0 for s in (section, config)):
        raise UnsupportedError(f"{config.where}: partly rotated heads are not supported")


def rope_base(config: ConfigSection, section: ConfigSection) -> float:
    """Return the base of the frequencies, from the rope section or from the config."""
    return section.number("rope_theta", config.number("rope_theta", 10000.0))


def rope_type(section: ConfigSection) -> str:
    """Return the type that a rope section names, under the newer or the older key."""
    return section.text("rope_type", section.text("type", DEFAULT))


def _read_llama3(config: ConfigSection, section: ConfigSection, theta: float) -> Rope:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if low >= high:
        raise CheckpointError(f"{config.where}: low_freq_factor {low} is not below {high}")
    return Rope(
        theta=theta,
        rope_type=LLAMA3,
        factor=section.number("factor"),
        context=_original_context(config, section),
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
        context=_original_context(config, section),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
    )
    names = [name for name in ("mscale", "mscale_all_dim") if section.values.get(name)]
    names += ["attention_factor"] if section.has("attention_factor") else []
    return _with_attention_factor(config, rope, {name: section.number(name) for name in names})


def _with_attention_factor(config: ConfigSection, rope: Rope, overrides: dict[str, Any]) -> Rope:
    """Return `rope` with transformers' attention factor, unless `overrides` have one."""
    try:
        factor = rope.frequencies(2, **{"attention_factor": None} | overrides)[1]
    except (ArithmeticError, ValueError) as error:  # of logarithms and roundings
        kind = rope.rope_type
        raise CheckpointError(f"{config.where}: odd numbers of a {kind} rope ({error})") from error
    return replace(rope, attention_factor=factor)


def _read_dynamic(
    config: ConfigSection, section: ConfigSection, theta: float, max_seq_len: int
) -> Rope:
    """Return the plain frequencies, which a dynamic rope has up to the model's context."""
    context = config.count("max_position_embeddings")
    if section.has("alpha"):
        raise UnsupportedError(f"{config.where}: alpha of a dynamic rope is not supported")
    if max_seq_len > context:
        raise UnsupportedError(
            f"{config.where}: a dynamic rope changes with the length of a text of more than "
            f"{context} tokens: --max-seq-len may be at most that, got {max_seq_len}"
        )
    return Rope(theta=theta)


def _read_longrope(
    config: ConfigSection, section: ConfigSection, theta: float, head_dim: int, max_seq_len: int
) -> Rope:
    if any(section.has(key) for key in ("short_mscale", "long_mscale")):
        raise UnsupportedError(f"{config.where}: short_mscale and long_mscale are not supported")
    context = _original_context(config, section)
    factors = section.numbers("short_factor" if max_seq_len <= context else "long_factor")
    if len(factors) != head_dim // 2:
        raise CheckpointError(
            f"{config.where}: longrope has {len(factors)} factors for {head_dim // 2} pairs"
        )
    rope = LongRope(theta=theta, context=context, factors=factors, max_seq_len=max_seq_len)
    longest = config.count("max_position_embeddings")
    overrides = {"factor": section.number("factor", longest / context)}
    if section.has("attention_factor"):
        overrides["attention_factor"] = section.number("attention_factor")
    return _with_attention_factor(config, rope, overrides)


def _original_context(config: ConfigSection, section: ConfigSection) -> int:
    for values in (config, section):
        if values.has(ORIGINAL_CONTEXT):
            return values.count(ORIGINAL_CONTEXT)
    return config.count("max_position_embeddings")
