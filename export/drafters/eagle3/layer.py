"""The decoder layers of a draft head, each in two halves before and after the attention itself.

The halves take any batch and any attention pattern, as training needs; inference puts a cache
between them (`Eagle3Draft.run`). Shapes: B batch, T slots, D head dimension, H draft hidden.
"""

import torch
from torch import Tensor, nn

from eagle_aot.export.drafters.eagle3.config import DraftConfig, Eagle3Wiring
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.layer import GatedMLP, SharedInput
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.rope import apply_rotary

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Names of activations in checkpoints, and in `GatedMLP`."""


class DraftAttention(SharedInput):
    """The projections of a layer whose q, k and v read `width` values."""

    shared_linears = ("q_proj", "k_proj", "v_proj")

    def __init__(self, config: DraftConfig, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        bias, eps = config.attention_bias, config.rms_norm_eps
        q_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(width, q_width, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(width, kv_width, bias=bias, dtype=dtype)
        self.v_proj = nn.Linear(width, kv_width, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(q_width, config.hidden_size, bias=config.output_bias, dtype=dtype)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps, dtype)
            self.k_norm = RMSNorm(config.head_dim, eps, dtype)
        self.rotary = config.rope.embedding(config.head_dim)

    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project `x` [B, T, width] at `positions` int64 [B, T] or [T].

        Returns q [B, T, heads, D], k and v [B, T, kv_heads, D]; q and k are rotated.
        """
        rotary = self.rotary(positions)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in self.project(x))
        return apply_rotary(self.q_norm(q), rotary), apply_rotary(self.k_norm(k), rotary), v

    def merge(self, attended: Tensor) -> Tensor:
        """Map `attended` [B, T, heads, D] to [B, T, H]."""
        return self.o_proj(attended.flatten(2))


class DraftBlock(nn.Module):
    """Base of all layers: norms, attention that reads `width` values, and MLP."""

    def __init__(self, config: DraftConfig, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        self.self_attn = DraftAttention(config, width, dtype)
        inner, bias = config.intermediate_size, config.mlp_bias
        self.mlp = GatedMLP(
            gate_proj=nn.Linear(hidden, inner, bias=bias, dtype=dtype),
            up_proj=nn.Linear(hidden, inner, bias=bias, dtype=dtype),
            down_proj=nn.Linear(inner, hidden, bias=bias, dtype=dtype),
            activation=ACTIVATIONS[config.hidden_act],
        )

    def project(
        self, stream: Tensor, feature: Tensor, positions: Tensor, wiring: Eagle3Wiring | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map `stream` and `feature` [B, T, H] at positions int64 [B, T] or [T] to residual
        [B, T, H], q, k and v.

        `stream` is the output of the layer before, or the embedding. The default `wiring` is the
        config's.
        """
        raise NotImplementedError

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Map `residual` [B, T, H] and `attended` [B, T, heads, D] to the output [B, T, H]."""
        stream = residual + self.self_attn.merge(attended)
        return stream + self.mlp(self.post_attention_layernorm(stream))


class DraftLayer(DraftBlock):
    """The first layer: q, k and v read [embedding, feature], 2H wide."""

    def __init__(self, config: DraftConfig, dtype: torch.dtype) -> None:
        super().__init__(config, 2 * config.hidden_size, dtype)
        self.wiring = config.wiring
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)

    def project(
        self, stream: Tensor, feature: Tensor, positions: Tensor, wiring: Eagle3Wiring | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project [embedding, feature] [B, T, 2H]; the residual is the feature."""
        wiring = wiring or self.wiring
        normed = self.hidden_norm(feature)
        residual = normed if wiring.norm_before_residual else feature
        halves = self.input_layernorm(stream), normed
        paired = torch.cat(halves[::-1] if wiring.halves_swapped else halves, dim=-1)
        return residual, *self.self_attn.heads(paired, positions)


class DeepDraftLayer(DraftBlock):
    """A layer after the first one: a plain decoder block with its own cache, as in speculators'
    `models/eagle3/core.py` and vLLM."""

    def __init__(self, config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, config.hidden_size, dtype)
        self.kv_cache = caches.cache(config.num_kv_heads, config.head_dim)

    def project(
        self, stream: Tensor, feature: Tensor, positions: Tensor, wiring: Eagle3Wiring | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project the stream [B, T, H]; `feature` is not read."""
        return stream, *self.self_attn.heads(self.input_layernorm(stream), positions)
