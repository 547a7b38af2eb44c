"""Key/value caches of several sequences, written in place and safe to roll back by overwriting.

A rejected token needs no clean-up: its slot is in nobody's tail, and among the committed ones not
before the position that it belongs to has been written. Neither does a sequence that ends: no row
of the next one sees a slot that it has not written itself.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from eagle_aot.common.zeros import untouched_zeros
from eagle_aot.targets.decoder.attention import additive, attend, attend_with_tail
from eagle_aot.targets.decoder.norms import cast
from eagle_aot.targets.step import (
    PADDING_SLOTS,
    TAIL,
    PromptChunk,
    Rows,
    Step,
    flat_slots,
    one_row_of_rows,
    ring_slots,
    rows_of_sequences,
)
from eagle_aot.triton_kernels import sdpa_prompt, sdpa_splitk


class KVCache(nn.Module):
    """Base: two zero buffers `k` and `v` [kv_heads, sequences * slots, head_dim].

    Each sequence has `slots` of its own, of which the last are for padding rows. `window` is 0 for
    a flat cache, `ring` the slots that a ring uses in turn.
    """

    k: Tensor
    v: Tensor
    window = 0
    ring = 0

    def __init__(
        self, kv_heads: int, slots: int, head_dim: int, dtype: torch.dtype, sequences: int
    ) -> None:
        super().__init__()
        self.slots, self.sequences = slots, sequences
        for name in ("k", "v"):
            buffer = torch.zeros(kv_heads, sequences * slots, head_dim, dtype=dtype)
            self.register_buffer(name, buffer, persistent=False)

    def physical(self, slots: Tensor) -> Tensor:
        """Where slots, counted as positions are, lie in a sequence's share of the buffer."""
        raise NotImplementedError

    def committed(
        self, newest: Tensor, positions: Tensor, last_visible: Tensor | None = None
    ) -> Tensor:
        """Which physical slots rows at `positions` int64 [...] see, bool [..., slots].

        All positions up to `newest` int64 [...] are stored, and none behind it is looked at. Where
        a window is all that is seen, a row sees on to `last_visible` int64 [...].
        """
        raise NotImplementedError

    def by_sequence(self, buffer: Tensor) -> Tensor:
        """`k` or `v` as [kv_heads, sequences, slots, head_dim]."""
        return buffer.unflatten(1, (self.sequences, self.slots))

    def reset(self) -> None:
        """Zero the cache (eager use; what rows see alone already isolates sequences)."""
        self.k.zero_()
        self.v.zero_()


class FlatKVCache(KVCache):
    """Slot = position. A row sees every key at or before its own position."""

    def __init__(
        self,
        kv_heads: int,
        max_seq_len: int,
        head_dim: int,
        dtype: torch.dtype,
        sequences: int = 1,
    ) -> None:
        super().__init__(kv_heads, flat_slots(max_seq_len), head_dim, dtype, sequences)

    def physical(self, slots: Tensor) -> Tensor:
        return slots

    def committed(
        self, newest: Tensor, positions: Tensor, last_visible: Tensor | None = None
    ) -> Tensor:
        slot = torch.arange(self.slots, device=newest.device)
        return slot <= torch.minimum(newest, positions).unsqueeze(-1)


class RingKVCache(KVCache):
    """Slot = position mod `ring`. A row sees the last `window` positions, its own included.

    No forward overwrites a key that one of its own rows still needs, as long as a chunk of a prompt
    is no longer than `step.longest_chunk`, `chunk` rows at least.
    """

    def __init__(
        self,
        kv_heads: int,
        window: int,
        head_dim: int,
        dtype: torch.dtype,
        sequences: int = 1,
        chunk: int = 0,
    ) -> None:
        ring = ring_slots(window, chunk)
        super().__init__(kv_heads, ring + PADDING_SLOTS, head_dim, dtype, sequences)
        self.window, self.ring = window, ring

    def physical(self, slots: Tensor) -> Tensor:
        return torch.remainder(slots, self.ring)

    def committed(
        self, newest: Tensor, positions: Tensor, last_visible: Tensor | None = None
    ) -> Tensor:
        slot = torch.arange(self.slots, device=newest.device)
        newest = newest.unsqueeze(-1)
        # Two rings more, because ExecuTorch's remainder of a negative number is negative.
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
    at least `chunk` rows. With `on_host` the buffers are zeros on the host that take no memory
    until something is written to them; without it they are made on torch's current default device.
    """

    max_seq_len: int
    dtype: torch.dtype
    sequences: int = 1
    chunk: int = 0
    on_host: bool = False

    def cache(self, kv_heads: int, head_dim: int, window: int = 0) -> KVCache:
        """One layer's: a ring for layers that see a `window`, flat for those that see all."""
        if not self.on_host:
            return self._made(kv_heads, head_dim, window)
        with torch.device("meta"):
            cache = self._made(kv_heads, head_dim, window)
        cache.k, cache.v = untouched_zeros(cache.k), untouched_zeros(cache.v)
        return cache

    def _made(self, kv_heads: int, head_dim: int, window: int) -> KVCache:
        if window:
            sizes = self.dtype, self.sequences, self.chunk
            return RingKVCache(kv_heads, window, head_dim, *sizes)
        return FlatKVCache(kv_heads, self.max_seq_len, head_dim, self.dtype, self.sequences)


class StepView:
    """What the rows of a step see of all caches of one kind, and where they are stored.

    Indices count along a buffer's second dimension. Computed once for all layers of the kind.
    """

    def __init__(self, step: Step, cache: KVCache) -> None:
        """`cache` is any of that kind."""
        self.step, self._cache = step, cache

    @cached_property
    def own(self) -> Tensor:
        """Where each row is stored, int64 [B * T]."""
        return self._places(self.step.tail[..., -1]).flatten()

    @cached_property
    def moves(self) -> tuple[Tensor, Tensor] | None:
        """What is copied before, and to where: int64 [B, TAIL] each."""
        sources = self.step.moves
        if sources is None:
            return None
        back = torch.arange(-TAIL, 0, device=sources.device)
        targets = torch.where(sources < 0, -1, self.step.positions[:, :1] + back)
        return self._places(sources), self._places(targets)

    @cached_property
    def tail(self) -> Tensor:
        """Where the tokens of all tails lie, int64 [B * T * TAIL]."""
        return self._places(self.step.tail).flatten()

    @cached_property
    def tail_mask(self) -> Tensor:
        """Additive, float32 [B * T, 1, TAIL]."""
        age = torch.arange(TAIL - 1, -1, -1, device=self.step.tail.device)
        seen = self.step.tail >= 0
        if self._cache.window:
            seen = seen & (age < self._cache.window)
        return additive(one_row_of_rows(seen)[0]).unsqueeze(1)

    @cached_property
    def mask(self) -> Tensor:
        """Of committed slots, additive, float32 [B * T, 1, slots]."""
        positions = self.step.row_positions[0]
        return additive(self._cache.committed(positions - TAIL, positions)).unsqueeze(1)

    def _places(self, slots: Tensor) -> Tensor:
        """Of logical slots int64 [B, ...]; -1 lies among the padding."""
        cache = self._cache
        physical = torch.where(slots < 0, cache.slots - 1, cache.physical(slots))
        if cache.sequences == 1:
            return physical
        first = self.step.sequences * cache.slots
        return physical + first.view(-1, *[1] * (slots.ndim - 1))

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Store `k`, `v` [1, B * T, kv_heads, head_dim] in a cache of the kind, after the moves."""
        for buffer, new in ((cache.k, k), (cache.v, v)):
            if self.moves is not None:
                sources, targets = (moves.flatten() for moves in self.moves)
                buffer.index_copy_(1, targets, buffer.index_select(1, sources))
            buffer.index_copy_(1, self.own, cast(new[0].transpose(0, 1), buffer.dtype))

    def attends_at_once(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Whether `heads` queries of `dtype` attend through the operator for steps."""
        servable = dtype == cache.k.dtype and sdpa_splitk.is_servable(heads, cache.k)
        return self.step.splits_keys and servable

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """`q` [1, B * T, heads, head_dim] over what was stored; same shape and dtype."""
        step = self.step
        k, v = cache.by_sequence(cache.k), cache.by_sequence(cache.v)
        if self.attends_at_once(q.shape[2], q.dtype, cache):
            rows = step.positions, step.sequences, step.tail
            apart = rows_of_sequences(q, step.positions)
            sizes = scale, cache.window, cache.ring
            return one_row_of_rows(sdpa_splitk.sdpa_splitk(apart, k, v, *rows, *sizes))
        committed = self._committed(cache.k, q.dtype), self._committed(cache.v, q.dtype)
        tail = self._gathered(cache.k, q.dtype), self._gathered(cache.v, q.dtype)
        masks = self.mask, self.tail_mask
        return attend_with_tail(q, step.positions, committed, tail, masks, cache.k.shape[0], scale)

    def _committed(self, buffer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the step's sequences of `k` or `v`: [kv_heads * B, slots, head_dim] as `dtype`."""
        if self._cache.sequences == 1:
            return cast(buffer, dtype)
        shares = self._cache.by_sequence(buffer)
        return cast(shares.index_select(1, self.step.sequences).flatten(0, 1), dtype)

    def _gathered(self, buffer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return all rows' tails of `k` or `v`: [kv_heads * B * T, TAIL, head_dim] as `dtype`."""
        tails = buffer.index_select(1, self.tail).unflatten(1, (-1, TAIL)).flatten(0, 1)
        return cast(tails, dtype)


class PromptView:
    """What the rows of a chunk see of all caches of one kind, and where they are stored."""

    moves = None  # a prompt follows no tree

    def __init__(self, chunk: PromptChunk, cache: KVCache) -> None:
        """`cache` is any of that kind."""
        self.chunk, self._cache = chunk, cache

    @cached_property
    def own(self) -> Tensor:
        """Where each row is stored, int64 [T]."""
        cache, chunk = self._cache, self.chunk
        slots = cache.physical(chunk.input_pos)
        return slots if cache.sequences == 1 else slots + chunk.sequence * cache.slots

    @cached_property
    def mask(self) -> Tensor:
        """Additive, float32 [T, 1, slots]."""
        positions, last = self.chunk.input_pos, self.chunk.last_visible
        return additive(self._cache.committed(positions[-1:], positions, last)).unsqueeze(1)

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Store `k`, `v` [1, T, kv_heads, head_dim] of a cache of this kind."""
        for buffer, new in ((cache.k, k), (cache.v, v)):
            buffer.index_copy_(1, self.own, cast(new[0].transpose(0, 1), buffer.dtype))

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """`q` [1, T, heads, head_dim] over what was stored; same shape and dtype."""
        if self.attends_at_once(q.shape[2], q.dtype, cache):
            k, v = cache.by_sequence(cache.k), cache.by_sequence(cache.v)
            rows, sizes = (self.chunk.input_pos, self.chunk.sequence), (cache.window, cache.ring)
            last = (self.chunk.last_visible,) if cache.window and self.chunk.given else ()
            return sdpa_prompt.sdpa_prompt(q, k, v, *rows, scale, *sizes, *last)
        k, v = self._share(cache.k, q.dtype), self._share(cache.v, q.dtype)
        return attend(q, k, v, self.mask, scale)

    def attends_at_once(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Whether `heads` queries of `dtype` attend through the operator for prompts."""
        servable = dtype == cache.k.dtype and sdpa_prompt.is_servable(heads, cache.k)
        return self.chunk.streams_keys and servable

    def _share(self, buffer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the chunk's sequence of `k` or `v`: [kv_heads, slots, head_dim] as `dtype`."""
        if self._cache.sequences == 1:
            return cast(buffer, dtype)
        shares = self._cache.by_sequence(buffer)
        return cast(shares.index_select(1, self.chunk.sequence).squeeze(1), dtype)


View = StepView | PromptView


def view_of(rows: Rows, cache: KVCache) -> View:
    """What `rows` see of all caches of one kind, of which `cache` is one."""
    return PromptView(rows, cache) if isinstance(rows, PromptChunk) else StepView(rows, cache)
