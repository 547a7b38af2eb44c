"""A decoder layer's attention over its cache."""

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.kv_cache import KVCache, View
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.rope import Rotary, apply_rotary
from eagle_aot.targets.decoder.shared_input import SharedInput
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.int4 import PackedProjections
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store


class CachedAttention(SharedInput):
    """Base: grouped-query attention with norms per head, which may be `nn.Identity`.

    A family makes the linears (`v_proj` is None where keys, before their norm, are the values), the
    norms, of which that of values has no weight, and the cache. Scores are multiplied by `scale`.
    """

    sharers = ("q_proj", "k_proj", "v_proj")
    heads: int
    head_dim: int
    scale: float
    o_proj: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    v_norm: nn.Module
    kv_cache: KVCache

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """`x` [1, T, H] -> [1, T, H]; stores the rows' keys and values."""
        cache, view = self.kv_cache, context.view
        if view.attends_at_once(self.heads, x.dtype, cache):
            q = self._store_at_once(x, view, context.rotary)
        else:
            q, k, v = self._rotated(x, context.rotary)
            view.store(cache, k, v)
        return self.o_proj(view.attend(cache, q, self.scale).flatten(2))

    def _rotated(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [1, T, heads, D] each."""
        raw = [t.unflatten(-1, (-1, self.head_dim)) for t in self.project(x)]
        q, k = self.q_norm(raw[0]), self.k_norm(raw[1])
        return apply_rotary(q, rotary), apply_rotary(k, rotary), self.v_norm(raw[-1])

    def _store_at_once(self, x: Tensor, view: View, rotary: Rotary) -> Tensor:
        """The same by one operator, which stores keys and values as well: queries."""
        weights = [getattr(norm, "weight", None) for norm in (self.q_norm, self.k_norm)]
        norms = [n for n in (self.q_norm, self.v_norm) if isinstance(n, RMSNorm)]
        return norm_rope_store(
            self._parts(x),
            *rotary,
            *weights,
            self.kv_cache.k,
            self.kv_cache.v,
            view.own,
            *(view.moves or (None, None)),
            self.heads,
            isinstance(self.v_norm, RMSNorm),
            norms[0].eps if norms else 0.0,
        )

    def _parts(self, x: Tensor) -> Tensor:
        """Products side by side, [S, 1, T, N], which add up."""
        if isinstance(self.fused, PackedProjections):
            return self.fused.parts(x)
        return torch.cat(self.project(x), dim=-1).unsqueeze(0)
