"""Key/value caches of several sequences, written in place.

Rollback needs no clean-up. The slot of a rejected token is in no later tail, and it becomes visible
as a committed slot only after its position has been written again. A new sequence can likewise
reuse the slots of an old one: no row sees a slot that its own sequence has not written.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_aot.common.tensors import untouched_zeros
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache, StateSizes
from eagle_aot.targets.step import PADDING_SLOTS, flat_slots, ring_slots
from eagle_aot.triton_kernels.kv_int8 import entry_length


class KVCache(nn.Module):
    """Base class: two zero buffers `k` and `v` [kv_heads, sequences * slots, head_dim].

    With a `dtype` of int8 they hold entries of `triton_kernels.kv_int8`, which are wider. Each
    sequence has `slots` slots; the last `PADDING_SLOTS` of them are for padding rows. `window` is
    the sliding window and `ring` the number of slots that a ring reuses; both are 0 for a flat
    cache. `by_token` is that of the spec, and false where a sequence has too many elements for it.
    """

    k: Tensor
    v: Tensor
    buffer_names = ("k", "v")
    window = 0
    ring = 0

    def __init__(self, kv_heads: int, slots: int, head_dim: int, spec: "CacheSpec") -> None:
        super().__init__()
        self.slots, self.sequences = slots, spec.sequences
        entry = entry_length(head_dim, spec.dtype)
        # Kernels count the elements of a sequence in 32 bits.
        self.by_token = spec.by_token and slots * kv_heads * entry < 2**31
        rows, columns = kv_heads, spec.sequences * slots
        if self.by_token:
            rows, columns = columns, rows
        for name in self.buffer_names:
            buffer = torch.zeros(rows, columns, entry, dtype=spec.dtype)
            buffer = buffer.transpose(0, 1) if self.by_token else buffer
            self.register_buffer(name, buffer, persistent=False)

    def physical(self, slots: Tensor) -> Tensor:
        """Map logical slots int64 [...], numbered like positions, to slots of one sequence."""
        raise NotImplementedError

    def committed(
        self, newest: Tensor, positions: Tensor, last_visible: Tensor | None = None
    ) -> Tensor:
        """Return which physical slots rows at `positions` int64 [...] see: bool [..., slots].

        Every position up to `newest` int64 [...] is stored, and no later one is visible. In a
        cache with a window, a row also sees positions up to `last_visible` int64 [...].
        """
        raise NotImplementedError

    def by_sequence(self, buffer: Tensor) -> Tensor:
        """View `k` or `v` as [kv_heads, sequences, slots, head_dim]."""
        return buffer.unflatten(1, (self.sequences, self.slots))

    def write(self, buffer: Tensor, slots: Tensor, entries: Tensor) -> None:
        """Store `entries` [kv_heads, N, head_dim] at `slots` int64 [N] of `k` or `v`."""
        if self.by_token:  # the compiler's index_copy_ would clone a cache with such strides
            torch.ops.aten.index_put_(buffer, [None, slots], entries)
        else:
            buffer.index_copy_(1, slots, entries)

    def reset(self) -> None:
        """Zero the cache. Visibility alone already isolates sequences; this is for eager use."""
        self.k.zero_()
        self.v.zero_()


class FlatKVCache(KVCache):
    """A cache [kv_heads, sequences * slots, head_dim] in which slot = position.

    A row sees every position up to its own.
    """

    def __init__(self, kv_heads: int, head_dim: int, spec: "CacheSpec") -> None:
        super().__init__(kv_heads, flat_slots(spec.max_seq_len), head_dim, spec)

    def physical(self, slots: Tensor) -> Tensor:
        return slots

    def committed(
        self, newest: Tensor, positions: Tensor, last_visible: Tensor | None = None
    ) -> Tensor:
        slot = torch.arange(self.slots, device=newest.device)
        return slot <= torch.minimum(newest, positions).unsqueeze(-1)


class RingKVCache(KVCache):
    """A cache [kv_heads, sequences * slots, head_dim] in which slot = position mod `ring`.

    A row sees the last `window` positions, including its own. No forward overwrites a key that one
    of its own rows still needs, as long as a prompt chunk has at most `step.longest_chunk` rows,
    which is at least `chunk`, or a window where that is 0.
    """

    def __init__(self, kv_heads: int, window: int, head_dim: int, spec: "CacheSpec") -> None:
        ring = ring_slots(window, spec.chunk)
        super().__init__(kv_heads, ring + PADDING_SLOTS, head_dim, spec)
        self.window, self.ring = window, ring

    def physical(self, slots: Tensor) -> Tensor:
        return torch.remainder(slots, self.ring)

    def committed(
        self, newest: Tensor, positions: Tensor, last_visible: Tensor | None = None
    ) -> Tensor:
        slot = torch.arange(self.slots, device=newest.device)
        newest = newest.unsqueeze(-1)
        # Two rings are added because ExecuTorch's remainder of a negative number is negative.
        stored = newest - torch.remainder(newest - slot + 2 * self.ring, self.ring)
        age = positions.unsqueeze(-1) - stored
        seen = age >= 0
        if last_visible is not None:
            seen = seen | (stored <= last_visible.unsqueeze(-1))
        return seen & (age < self.window) & (stored >= 0) & (slot < self.ring)


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The size and dtype of a model's KV caches.

    Each cache holds `sequences` sequences of up to `max_seq_len` positions. `dtype` is that of the
    stored keys and values; the model's own dtype is independent of it. Rings take prompt chunks of
    `chunk` rows, of a window where that is 0. With `by_token` the entries of a slot's heads lie
    together in memory, so that a text takes few pages of it; else those of a head's slots. With
    `on_host` the buffers are zeros on the host that take no memory until something is written to
    them; without it they are made on torch's current default device.
    """

    max_seq_len: int
    dtype: torch.dtype
    sequences: int = 1
    chunk: int = 0
    by_token: bool = False
    on_host: bool = False

    def cache(self, kv_heads: int, head_dim: int, window: int = 0) -> KVCache:
        """Make the cache of one layer: a ring if the layer has a `window`, else a flat one."""
        if not self.on_host:
            return self._make(kv_heads, head_dim, window)
        with torch.device("meta"):
            cache = self._make(kv_heads, head_dim, window)
        leave_untouched(cache)
        return cache

    def recurrent(self, sizes: StateSizes) -> RecurrentCache:
        """Make the cache of one layer with recurrent states, which are float32."""
        if not self.on_host:
            return RecurrentCache(sizes, self.sequences)
        with torch.device("meta"):
            cache = RecurrentCache(sizes, self.sequences)
        leave_untouched(cache)
        return cache

    def _make(self, kv_heads: int, head_dim: int, window: int) -> KVCache:
        if window:
            return RingKVCache(kv_heads, window, head_dim, self)
        return FlatKVCache(kv_heads, head_dim, self)


def leave_untouched(cache: KVCache | RecurrentCache) -> None:
    """Replace a cache's buffers by zeros on the host that take no memory until they are written."""
    for name, buffer in cache.named_buffers():
        setattr(cache, name, untouched_zeros(buffer))
