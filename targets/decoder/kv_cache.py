"""Key/value caches for one sequence, written in place and safe to roll back by overwriting.

A rejected speculative token needs no clean-up in either cache: its slot is masked for every query
until the position it belongs to is written again.
"""

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.attention import attend
from eagle_aot.triton_kernels.sdpa_splitk import is_servable, sdpa_splitk

# Added to a score that may not be attended. Finite, because -inf minus -inf is NaN in some
# vectorised softmax kernels; exp() of it is exactly 0 in every float dtype.
MASKED = -1.0e9


class KVCache(nn.Module):
    """Base: two zero buffers `k` and `v` of shape [1, num_kv_heads, slots, head_dim].

    `window` is 0 for a flat cache. With `splits_keys`, which an export sets for a round's methods,
    they attend through the operator that is made for few rows, where it serves the layer: that
    needs no mask.
    """

    k: Tensor
    v: Tensor
    window = 0
    splits_keys = False

    def __init__(self, num_kv_heads: int, slots: int, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        for name in ("k", "v"):
            buffer = torch.zeros(1, num_kv_heads, slots, head_dim, dtype=dtype)
            self.register_buffer(name, buffer, persistent=False)

    def slots(self, input_pos: Tensor) -> Tensor:
        """Where the entries of `input_pos` int64 [T] are stored, int64 [T]."""
        raise NotImplementedError

    def mask(self, input_pos: Tensor) -> Tensor:
        """Additive float32 mask [T, slots]: 0 where a query may look, `MASKED` elsewhere."""
        raise NotImplementedError

    def update(self, k: Tensor, v: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        """Store `k`, `v` [1, num_kv_heads, T, head_dim] at `input_pos`; returns both caches."""
        slots = self.slots(input_pos)
        self.k.index_copy_(2, slots, k)
        self.v.index_copy_(2, slots, v)
        return self.k, self.v

    def attend(self, q: Tensor, chunk: "Chunk", scale: float) -> Tensor:
        """`q` [1, T, heads, head_dim] of `chunk` over what was stored; same shape and dtype."""
        if self.splits_keys and is_servable(q, self.k):
            return sdpa_splitk(q, self.k, self.v, chunk.input_pos, scale, self.window)
        return attend(q.transpose(1, 2), self.k, self.v, chunk.mask(), scale).transpose(1, 2)

    def reset(self) -> None:
        """Zero the cache (eager use; the masks alone already isolate sequences)."""
        self.k.zero_()
        self.v.zero_()


class FlatKVCache(KVCache):
    """Slot = position. A query sees every key at or before its own position."""

    def slots(self, input_pos: Tensor) -> Tensor:
        return input_pos

    def mask(self, input_pos: Tensor) -> Tensor:
        key_pos = torch.arange(self.k.shape[2], device=input_pos.device)
        return additive(key_pos <= input_pos.unsqueeze(-1))


class RingKVCache(KVCache):
    """Slot = position mod (2 x window). A query sees the last `window` positions, its own included.

    Twice the window, so that one forward of up to `window` tokens (or of `2 x window` from an
    empty cache) never overwrites a key that one of its own queries still needs. A forward must not
    be longer than that, and the window not shorter than the verify window: then a slot left over
    from a rejected token reads as a position more than one window back, hence masked.
    """

    def __init__(self, num_kv_heads: int, window: int, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__(num_kv_heads, 2 * window, head_dim, dtype)
        self.window = window

    def slots(self, input_pos: Tensor) -> Tensor:
        return torch.remainder(input_pos, 2 * self.window)

    def mask(self, input_pos: Tensor) -> Tensor:
        slot = torch.arange(2 * self.window, device=input_pos.device)
        newest = input_pos[-1:]
        key_pos = newest - torch.remainder(newest - slot, 2 * self.window)
        age = input_pos.unsqueeze(-1) - key_pos
        return additive((age >= 0) & (age < self.window) & (key_pos >= 0))


class Chunk:
    """Positions int64 [T] that are run at once, and what they see of all caches of one kind."""

    def __init__(self, input_pos: Tensor, cache: KVCache) -> None:
        """`cache` is any of that kind."""
        self.input_pos = input_pos
        self._cache = cache
        self._mask: Tensor | None = None

    def mask(self) -> Tensor:
        """`cache.mask`, computed by the first layer that needs one."""
        if self._mask is None:
            self._mask = self._cache.mask(self.input_pos)
        return self._mask


def additive(visible: Tensor) -> Tensor:
    """Boolean mask -> float32 mask to add to attention scores."""
    return torch.where(visible, 0.0, MASKED)
