"""Phi-3, Phi-4 and Phi-4-mini decoders: the layers of Llama, stored and rotated in another way.

A checkpoint has one linear for q, k and v, and one for gate and up. Phi-4-mini rotates the first
96 of the 128 elements of a head, with pairs (i, i + 48). Rows of q and k are put into an order in
which those pairs are (i, i + 64) and the rest stands still: scores do not depend on the order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.layer import fold_column_orders
from eagle_aot.targets.decoder.rope import (
    ORIGINAL_CONTEXT,
    Rope,
    Rotary,
    RotaryEmbedding,
    read_rope,
)
from eagle_aot.targets.family import Family, Published
from eagle_aot.targets.int4 import rows_of
from eagle_aot.targets.pre_norm.config import (
    FULL,
    QKV,
    PreNormConfig,
    read_pre_norm,
    same_window_types,
)
from eagle_aot.targets.pre_norm.model import (
    PreNormDecoder,
    linear,
    load_pre_norm,
)

CONTEXT = 4096  # original context, if config.json has none
SHARE = "partial_rotary_factor"
GATE_UP = ("gate_proj", "up_proj")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartialRope(Rope):
    """Rotates the first `pairs` pairs of a head as `leading` rotates a head of that many."""

    pairs: int
    leading: Rope

    @property
    def decision(self) -> dict[str, str]:
        return self.leading.decision

    def embedding(self, head_dim: int) -> RotaryEmbedding:
        return PartialRotary(self.leading, self.pairs, head_dim)


class PartialRotary(RotaryEmbedding):
    """Computes tables in which the attention factor multiplies the rotated pairs alone."""

    factors: Tensor

    def __init__(self, rope: Rope, pairs: int, head_dim: int) -> None:
        still = head_dim // 2 - pairs
        super().__init__(F.pad(rope.inv_freq(2 * pairs), (0, still)))
        factors = F.pad(torch.full((pairs,), rope.attention_factor), (0, still), value=1.0)
        self.register_buffer("factors", factors.repeat(2), persistent=False)

    def tables(self, positions: Tensor, inv_freq: Tensor) -> Rotary:
        cos, sin = RotaryEmbedding.tables(self, positions, inv_freq)
        return cos * self.factors, sin * self.factors


class StackedDecoder(PreNormDecoder):
    """A decoder with the linears that checkpoints store, until `split` makes them Llama's."""

    def __init__(self, config: PreNormConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        for attention, mlp in self._branches():
            attention.qkv_proj = _stacked(attention, QKV, dtype)
            mlp.gate_up_proj = _stacked(mlp, GATE_UP, dtype)

    def split(self) -> None:
        """Replace each stacked linear by its parts, with the rows of q and k in rotated order."""
        config = self.config
        inner, head_dim = config.intermediate_size, config.head_dim
        pairs = config.rope.pairs if isinstance(config.rope, PartialRope) else head_dim // 2
        heads = config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads
        rows = torch.arange(sum(heads) * head_dim).view(-1, head_dim)
        q, k, v = rows.split(heads)
        order = _rotated_order(pairs, head_dim)
        parts = {"q_proj": q[:, order], "k_proj": k[:, order], "v_proj": v}
        gate, up = torch.arange(2 * inner).split(inner)
        for attention, mlp in self._branches():
            _split(attention, "qkv_proj", {name: part.flatten() for name, part in parts.items()})
            _split(mlp, "gate_up_proj", {"gate_proj": gate, "up_proj": up})
        fold_column_orders(self)

    def _branches(self) -> list[tuple[nn.Module, nn.Module]]:
        return [
            (layer.get_submodule("self_attn"), layer.get_submodule("mlp")) for layer in self.layers
        ]


def _stacked(owner: nn.Module, names: tuple[str, ...], dtype: torch.dtype) -> nn.Linear:
    """Return one linear without storage for several of `owner`, which are removed."""
    outputs = 0
    for name in names:
        part = owner.get_submodule(name)
        assert isinstance(part, nn.Linear)
        inputs, outputs = part.in_features, outputs + part.out_features
        setattr(owner, name, None)
    return linear(inputs, outputs, dtype)


def _split(owner: nn.Module, name: str, rows: Mapping[str, Tensor]) -> None:
    """Replace the linear `name` by several, which have its rows int64 [N] each."""
    stacked = owner.get_submodule(name)
    delattr(owner, name)
    for part, numbers in rows.items():
        setattr(owner, part, rows_of(stacked, numbers))


def _rotated_order(pairs: int, head_dim: int) -> Tensor:
    """Return the stored element of each element of a head, int64 [head_dim]."""
    stored = torch.arange(head_dim)
    first, second, still = stored.split((pairs, pairs, head_dim - 2 * pairs))
    half = len(still) // 2
    return torch.cat((first, still[:half], second, still[half:]))


def read_config(config: ConfigSection, max_seq_len: int) -> PreNormConfig:
    """Read a config.json. Raises CheckpointError and UnsupportedError."""
    window = config.count("sliding_window") if config.has("sliding_window") else 0
    return read_pre_norm(
        config,
        max_seq_len,
        model_type="phi3",
        qk_norm=False,
        layer_types=same_window_types(config, window, max_seq_len),
        sliding_window=window,
        rope=_read_rope(config, max_seq_len),
    )


def _read_rope(config: ConfigSection, max_seq_len: int) -> Rope:
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", max(config.count("hidden_size") // heads, 1))
    key = "rope_scaling" if config.section("rope_scaling").values else "rope_parameters"
    section = config.section(key)
    share = section.number(SHARE, config.number(SHARE, 1.0))
    pairs = int(head_dim * share) // 2
    if not 0 < pairs <= head_dim // 2:
        raise CheckpointError(f"{config.where}: {SHARE} {share} rotates {pairs} pairs of a head")
    whole = {key: {name: value for name, value in section.values.items() if name != SHARE}}
    values = {ORIGINAL_CONTEXT: CONTEXT, **config.values, SHARE: None, **whole}
    rope = read_rope(ConfigSection(values, config.where), 2 * pairs, max_seq_len)
    if 2 * pairs == head_dim:
        return rope
    return PartialRope(theta=rope.theta, pairs=pairs, leading=rope)


def load_phi3(checkpoint: Checkpoint, dtype: torch.dtype, caches: CacheSpec) -> StackedDecoder:
    """Load the decoder of `checkpoint` on the host; linears are INT4 where the checkpoint is."""
    target = load_pre_norm(read_config, StackedDecoder, checkpoint, dtype, caches)
    target.split()
    return target.eval()


PHI_4_MINI = PreNormConfig(
    vocab_size=200064,
    hidden_size=3072,
    intermediate_size=8192,
    layer_types=(FULL,) * 32,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope=PartialRope(theta=10000.0, pairs=48, leading=Rope(theta=10000.0)),
    tie_word_embeddings=True,
    qk_norm=False,
)
"""microsoft/Phi-4-mini-instruct; sizes from general knowledge, without the factors of its rope."""

PHI3 = Family(
    model_types=("phi3",),
    load=load_phi3,
    read_config=read_config,
    decoder=PreNormDecoder,
    published=(Published("phi-4-mini", "microsoft/Phi-4-mini-instruct", PHI_4_MINI),),
)
