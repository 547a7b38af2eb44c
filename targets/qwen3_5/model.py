"""The Qwen3.5 text decoder, written to be exported."""

import torch
from torch import Tensor, nn

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.recurrent_cache import has_states
from eagle_aot.targets.decoder.rope import Rotary, apply_rotary
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import PreNormConfig
from eagle_aot.targets.pre_norm.model import (
    PreNormAttention,
    PreNormDecoder,
    PreNormLayer,
    linear,
    load_pre_norm,
)
from eagle_aot.targets.qwen3_5.config import LINEAR, HybridConfig, read_qwen3_5
from eagle_aot.targets.qwen3_5.delta_net import GatedDeltaNet

PREFIXES = "model.language_model.", "model.", ""
"""Tensor name prefixes: in a model that reads images, a causal language model, a base model."""
UNUSED = "model.visual.", "mtp."
"""Prefixes of the image encoder, and of the layer that predicts a token further on."""


class GatedAttention(PreNormAttention):
    """Attention whose output each head multiplies by a gate, which its query's linear gives too.

    A head's first elements are rotated, and the others are not.
    """

    def __init__(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__(config, kind, dtype, caches)
        self.q_proj = linear(config.hidden_size, 2 * self.heads * self.head_dim, dtype)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        cache, view = self.kv_cache, context.view
        queries, keys, values = self.project(x)
        heads = queries.unflatten(-1, (self.heads, 2 * self.head_dim))
        gate = heads[..., self.head_dim :]
        k = self.k_norm(keys.unflatten(-1, (-1, self.head_dim)))
        v = values.unflatten(-1, (-1, self.head_dim))
        view.store(cache, rotate_first(k, context.rotary), v)
        q = rotate_first(self.q_norm(heads[..., : self.head_dim]), context.rotary)
        attended = view.attend(cache, q, self.scale)
        return self.o_proj((attended * torch.sigmoid(gate)).flatten(2))


def rotate_first(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate as many first elements of each head of `x` [1, T, heads, head_dim] as the tables have;
    same shape and dtype."""
    rotated = rotary[0].shape[-1]
    return torch.cat((apply_rotary(x[..., :rotated], rotary), x[..., rotated:]), dim=-1)


class AttentionLayer(PreNormLayer):
    """A decoder layer that attends."""

    def attention(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> nn.Module:
        return GatedAttention(config, kind, dtype, caches)


class DeltaLayer(PreNormLayer):
    """A decoder layer with a gated delta net in the place of attention."""

    mixer = "linear_attn"
    branch_outputs = ("linear_attn.out_proj", "mlp.down_proj")

    def attention(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> nn.Module:
        assert isinstance(config, HybridConfig)
        return GatedDeltaNet(config, dtype, caches)


class HybridDecoder(PreNormDecoder):
    """A decoder whose layers attend or have recurrent states, as `layer_types` says."""

    def __init__(self, config: HybridConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        self.positions.has_states = has_states(self)

    def layer_of(self, kind: str) -> type[PreNormLayer]:
        return DeltaLayer if kind == LINEAR else AttentionLayer


def centre_norms(model: nn.Module) -> None:
    """Add 1 to the weights of the norms that are stored as their difference from 1: all but those
    of delta nets."""
    for name, module in model.named_modules():
        if isinstance(module, RMSNorm) and not name.endswith("linear_attn.norm"):
            assert module.weight is not None
            weight = cast(module.weight, torch.float32) + 1
            module.weight = nn.Parameter(weight.to(module.weight.dtype), requires_grad=False)


def load_qwen3_5(checkpoint: Checkpoint, dtype: torch.dtype, caches: CacheSpec) -> HybridDecoder:
    """Load the decoder of `checkpoint` on the host; linears are INT4 where the checkpoint is."""
    target = load_pre_norm(
        read_qwen3_5, HybridDecoder, checkpoint, dtype, caches, prefixes=PREFIXES, unused=UNUSED
    )
    centre_norms(target)
    return target
