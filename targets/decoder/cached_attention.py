"""A decoder layer's attention over its cache."""

from torch import Tensor, nn

from eagle_aot.targets.decoder.cache_views import View
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.layer import SharedInput
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.rope import Rotary, apply_rotary
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store


class CachedAttention(SharedInput):
    """Base class: grouped-query attention with norms per head, which may be `nn.Identity`.

    A family makes the linears, the norms and the cache. `v_proj` is None if the keys, before their
    norm, are the values. The norm of values has no weight. Scores are multiplied by `scale`.
    """

    shared_linears = ("q_proj", "k_proj", "v_proj")
    heads: int
    head_dim: int
    scale: float
    o_proj: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    v_norm: nn.Module
    kv_cache: KVCache

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Attend with the rows `x` [1, T, H], after storing their keys and values; same shape."""
        cache, view = self.kv_cache, context.view
        if view.uses_operator(self.heads, x.dtype, cache):
            q = self._store_with_operator(x, view, context.rotary)
        else:
            q, k, v = self._rotate(x, context.rotary)
            view.store(cache, k, v)
        return self.o_proj(view.attend(cache, q, self.scale).flatten(2))

    def _rotate(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalised and rotated queries, keys and values, [1, T, heads, D] each."""
        heads = [t.unflatten(-1, (-1, self.head_dim)) for t in self.project(x)]
        q, k = self.q_norm(heads[0]), self.k_norm(heads[1])
        return apply_rotary(q, rotary), apply_rotary(k, rotary), self.v_norm(heads[-1])

    def _store_with_operator(self, x: Tensor, view: View, rotary: Rotary) -> Tensor:
        """Store keys and values and return queries [1, T, heads, D], by one operator."""
        (cos, sin), parts, row_slots = rotary, self.product_parts(x), view.row_slots
        sources, targets = view.moves or (None, None)
        norms = [norm for norm in (self.q_norm, self.v_norm) if isinstance(norm, RMSNorm)]
        return norm_rope_store(
            parts,
            cos,
            sin,
            getattr(self.q_norm, "weight", None),
            getattr(self.k_norm, "weight", None),
            self.kv_cache.k,
            self.kv_cache.v,
            row_slots,
            sources,
            targets,
            self.heads,
            isinstance(self.v_norm, RMSNorm),
            norms[0].eps if norms else 0.0,
            x.dtype,
        )
