"""A head's rotary embedding: what targets have, and what only public heads use."""

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
"""Fields of `Rope` that a type uses beside its base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicRope(Rope):
    """Frequencies that sink once the sequence is longer than `context`, by how much longer it is.

    As transformers' `_compute_dynamic_ntk_parameters`.
    """

    rope_type: str = DYNAMIC

    def embedding(self, head_dim: int) -> RotaryEmbedding:
        return DynamicRotary(self, head_dim)

    def inv_freq(self, head_dim: int) -> Tensor:
        """Those of a sequence that is not longer than `context`."""
        return Rope(theta=self.theta).inv_freq(head_dim)


class DynamicRotary(RotaryEmbedding):
    """One set of frequencies per sequence of a forward, from its last position, read on the device.

    `(theta * s^(D / (D - 2)))^(-2i / D)` is the unscaled frequency times `s^(-2i / (D - 2))`.
    Keys stay as the chunk that stored them turned them, as everywhere with a cache.
    """

    exponents: Tensor

    def __init__(self, rope: DynamicRope, head_dim: int) -> None:
        super().__init__(rope.inv_freq(head_dim))
        self.factor, self.context = rope.factor, rope.context
        exponents = -torch.arange(0, head_dim, 2, dtype=torch.float32) / (head_dim - 2)
        self.register_buffer("exponents", exponents, persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """`positions` int64 [B, T] -> the tables `apply_rotary` takes."""
        last = positions.amax(dim=-1, keepdim=True).unsqueeze(-1).unsqueeze(-1)
        length = (cast(last, torch.float32) + 1.0).clamp(min=float(self.context))
        stretch = self.factor * length / self.context - (self.factor - 1.0)
        inv_freq = self.inv_freq * torch.exp(self.exponents * torch.log(stretch))
        return self.tables(positions, inv_freq)


def read_head_rope(layer: ConfigSection) -> Rope:
    """The rotary embedding that a head's layer config describes.

    Where nothing names a base it is 10000, whatever the target uses (SafeAILab `_init_rope`).
    SpecForge writes `rope_parameters` beside the older keys; the new key wins. Raises
    UnsupportedError for a type that no public head is known to use.
    """
    key = "rope_parameters" if layer.has("rope_parameters") else "rope_scaling"
    section = layer.section(key)
    kind = rope_type(section)
    if kind == DYNAMIC:
        return _read_dynamic(layer, section)
    values = {name: v for name, v in layer.values.items() if not name.startswith("rope_s")}
    # a text's three M-RoPE positions are one and the same
    plain = {"rope_type": DEFAULT, "type": DEFAULT} if kind == MROPE else {}
    rope = {"rope_parameters": {**section.values, **plain}}
    try:
        return read_rope(ConfigSection({**values, **rope}, layer.where))
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}, in a draft head") from error


def describe_rope(rope: Rope, layer: ConfigSection) -> dict[str, Any]:
    """What matters to its type, and the key that said so."""
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
