"""The rotary embedding of a head: the types of targets, and those that only heads use."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.norms import cast
from eagle_aot.targets.decoder.rope import (
    DEFAULT,
    LINEAR,
    LLAMA3,
    YARN,
    Rope,
    Rotary,
    RotaryEmbedding,
    check_whole_heads,
    read_rope,
    rope_base,
    rope_type,
)

DYNAMIC, MROPE = "dynamic", "mrope"

USED = {
    DEFAULT: (),
    LINEAR: ("factor",),
    DYNAMIC: ("factor", "context"),
    LLAMA3: ("factor", "context", "low_freq_factor", "high_freq_factor"),
    YARN: ("factor", "context", "beta_fast", "beta_slow", "attention_factor", "truncate"),
}
"""Fields of `Rope` that a type uses in addition to its base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicRope(Rope):
    """Frequencies that decrease with the length of a sequence once it is longer than `context`, as
    in transformers' `_compute_dynamic_ntk_parameters`."""

    rope_type: str = DYNAMIC

    def embedding(self, head_dim: int) -> RotaryEmbedding:
        return DynamicRotary(self, head_dim)

    def inv_freq(self, head_dim: int) -> Tensor:
        """Return the frequencies of a sequence that is not longer than `context`."""
        return Rope(theta=self.theta).inv_freq(head_dim)


class DynamicRotary(RotaryEmbedding):
    """Computes frequencies for each sequence from its last position, on the device.

    `(theta * s^(D / (D - 2)))^(-2i / D)` is the unscaled frequency times `s^(-2i / (D - 2))`.
    Cached keys keep the rotation of the chunk that stored them.
    """

    exponents: Tensor

    def __init__(self, rope: DynamicRope, head_dim: int) -> None:
        super().__init__(rope.inv_freq(head_dim))
        self.factor, self.context = rope.factor, rope.context
        exponents = -torch.arange(0, head_dim, 2, dtype=torch.float32) / (head_dim - 2)
        self.register_buffer("exponents", exponents, persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """Return the tables that `apply_rotary` takes, for `positions` int64 [B, T]."""
        last = positions.amax(dim=-1, keepdim=True).unsqueeze(-1).unsqueeze(-1)
        length = (cast(last, torch.float32) + 1.0).clamp(min=float(self.context))
        stretch = self.factor * length / self.context - (self.factor - 1.0)
        inv_freq = self.inv_freq * torch.exp(self.exponents * torch.log(stretch))
        return self.tables(positions, inv_freq)


def read_head_rope(layer: ConfigSection) -> Rope:
    """Return the rotary embedding that a head's layer config describes.

    The default base is 10000, whatever the target uses (SafeAILab `_init_rope`). SpecForge writes
    `rope_parameters` in addition to the older keys; the new key wins. Raises UnsupportedError for a
    type that no public head is known to use.
    """
    key = "rope_parameters" if layer.has("rope_parameters") else "rope_scaling"
    section = layer.section(key)
    kind = rope_type(section)
    if kind == DYNAMIC:
        return _read_dynamic(layer, section)
    values = {name: v for name, v in layer.values.items() if not name.startswith("rope_s")}
    # the three M-RoPE positions of text are equal
    plain = {"rope_type": DEFAULT, "type": DEFAULT} if kind == MROPE else {}
    rope = {"rope_parameters": {**section.values, **plain}}
    try:
        return read_rope(ConfigSection({**values, **rope}, layer.where))
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}, in a draft head") from error


def describe_rope(rope: Rope, layer: ConfigSection) -> dict[str, Any]:
    """Return the fields that a rotary embedding's type uses, and the key that it was read from."""
    keys = [key for key in ("rope_parameters", "rope_scaling", "rope_theta") if layer.has(key)]
    used = {name: getattr(rope, name) for name in ("rope_type", "theta", *USED[rope.rope_type])}
    return used | {"source": f"{keys[0]} in config.json" if keys else "config.json says nothing"}


def _read_dynamic(layer: ConfigSection, section: ConfigSection) -> DynamicRope:
    check_whole_heads(layer, section)
    return DynamicRope(
        theta=rope_base(layer, section),
        factor=section.number("factor"),
        context=layer.count("max_position_embeddings"),
    )
