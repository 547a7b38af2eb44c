"""Where the rows of a forward are stored in a layer's cache, and what they see of it.

A view is computed once for all layers whose caches are of one kind, that is, have the same number
of slots and the same window. Its indices count along dimension 1 of a cache's buffers.
"""

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from eagle_aot.targets.decoder.attention import additive, attend, attend_with_tail
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.step import TAIL, PromptChunk, Rows, Step, one_row_of_rows, rows_of_sequences
from eagle_aot.triton_kernels import copy_rows as copy_rows_operator
from eagle_aot.triton_kernels import sdpa_prompt, sdpa_splitk
from eagle_aot.triton_kernels.kv_int8 import are_readable, read_entries, write_entries


class StepView:
    """The view of the rows of a step."""

    def __init__(self, step: Step, cache: KVCache) -> None:
        """`cache` is any cache of the kind; `window` is its window."""
        self.step, self._cache, self.window = step, cache, cache.window

    @cached_property
    def row_slots(self) -> Tensor:
        """The slot that each row is stored at, int64 [B * T]."""
        return self._buffer_slots(self.step.tail[..., -1]).flatten()

    @cached_property
    def moves(self) -> tuple[Tensor, Tensor] | None:
        """Slots that are copied before rows are stored, and their targets: int64 [B, TAIL] each."""
        sources = self.step.moves
        if sources is None:
            return None
        offsets = torch.arange(-TAIL, 0, device=sources.device)
        targets = torch.where(sources < 0, -1, self.step.positions[:, :1] + offsets)
        return self._buffer_slots(sources), self._buffer_slots(targets)

    @cached_property
    def tail(self) -> Tensor:
        """Slots of the tokens of all tails, int64 [B * T * TAIL]."""
        return self._buffer_slots(self.step.tail).flatten()

    @cached_property
    def tail_mask(self) -> Tensor:
        """Additive mask of each row's tail, float32 [B * T, 1, TAIL]."""
        age = torch.arange(TAIL - 1, -1, -1, device=self.step.tail.device)
        seen = self.step.tail >= 0
        if self.window:
            seen = seen & (age < self.window)
        return additive(one_row_of_rows(seen)[0]).unsqueeze(1)

    @cached_property
    def mask(self) -> Tensor:
        """Additive mask of committed slots, float32 [B * T, 1, slots]."""
        positions = self.step.row_positions[0]
        return additive(self._cache.committed(positions - TAIL, positions)).unsqueeze(1)

    def _buffer_slots(self, slots: Tensor) -> Tensor:
        """Map logical slots int64 [B, ...] to the buffer's; -1 becomes a padding slot."""
        cache = self._cache
        physical = torch.where(slots < 0, cache.slots - 1, cache.physical(slots))
        if cache.sequences == 1:
            return physical
        first = self.step.sequences * cache.slots
        return physical + first.view(-1, *[1] * (slots.ndim - 1))

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Apply the moves, then store `k`, `v` [1, B * T, kv_heads, head_dim] in `cache`."""
        for buffer, new in ((cache.k, k), (cache.v, v)):
            if self.moves is not None:
                sources, targets = (moves.flatten() for moves in self.moves)
                cache.write(buffer, targets, buffer.index_select(1, sources))
            entries = write_entries(new[0].transpose(0, 1), buffer.dtype)
            cache.write(buffer, self.row_slots, entries)

    def uses_operator(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Whether `heads` queries of `dtype` attend through the split-K operator."""
        servable = are_readable(cache.k, dtype) and sdpa_splitk.is_servable(heads, cache.k)
        return self.step.use_splitk and servable

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """Attend with `q` [1, B * T, heads, head_dim] to what is stored; same shape and dtype."""
        step = self.step
        if self.uses_operator(q.shape[2], q.dtype, cache):
            k, v = cache.by_sequence(cache.k), cache.by_sequence(cache.v)
            attended = sdpa_splitk.sdpa_splitk(
                rows_of_sequences(q, step.positions),
                k,
                v,
                step.positions,
                step.sequences,
                step.tail,
                scale,
                self.window,
                cache.ring,
            )
            return one_row_of_rows(attended)
        return attend_with_tail(
            q,
            step.positions,
            committed=(self._committed(cache.k, q.dtype), self._committed(cache.v, q.dtype)),
            tail=(self._tails(cache.k, q.dtype), self._tails(cache.v, q.dtype)),
            masks=(self.mask, self.tail_mask),
            kv_heads=cache.k.shape[0],
            scale=scale,
        )

    def _committed(self, buffer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the step's sequences of `k` or `v`: [kv_heads * B, slots, head_dim] as `dtype`."""
        if self._cache.sequences == 1:
            return read_entries(buffer, dtype)
        sequences = self._cache.by_sequence(buffer).index_select(1, self.step.sequences)
        return read_entries(sequences.flatten(0, 1), dtype)

    def _tails(self, buffer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return all rows' tails of `k` or `v`: [kv_heads * B * T, TAIL, head_dim] as `dtype`."""
        tails = buffer.index_select(1, self.tail).unflatten(1, (-1, TAIL)).flatten(0, 1)
        return read_entries(tails, dtype)


class PromptView:
    """The view of the rows of a prompt chunk."""

    moves = None  # a prompt is committed as it is stored

    def __init__(self, chunk: PromptChunk, cache: KVCache) -> None:
        """`cache` is any cache of the kind."""
        self.chunk, self._cache = chunk, cache

    @cached_property
    def row_slots(self) -> Tensor:
        """The slot that each row is stored at, int64 [T]."""
        cache, chunk = self._cache, self.chunk
        slots = cache.physical(chunk.input_pos)
        return slots if cache.sequences == 1 else slots + chunk.sequence * cache.slots

    @cached_property
    def mask(self) -> Tensor:
        """Additive mask of the sequence's slots, float32 [T, 1, slots]."""
        positions, last = self.chunk.input_pos, self.chunk.last_visible
        return additive(self._cache.committed(positions[-1:], positions, last)).unsqueeze(1)

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Store `k`, `v` [1, T, kv_heads, head_dim] in `cache`."""
        for buffer, new in ((cache.k, k), (cache.v, v)):
            entries = write_entries(new[0].transpose(0, 1), buffer.dtype)
            cache.write(buffer, self.row_slots, entries)

    def uses_operator(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Whether `heads` queries of `dtype` attend through the operator for prompts."""
        servable = are_readable(cache.k, dtype) and sdpa_prompt.is_servable(heads, cache.k)
        return self.chunk.use_prompt_kernel and servable

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """Attend with `q` [1, T, heads, head_dim] to what is stored; same shape and dtype."""
        chunk = self.chunk
        if self.uses_operator(q.shape[2], q.dtype, cache):
            k, v = cache.by_sequence(cache.k), cache.by_sequence(cache.v)
            # Left out where it is not used: a traced call shows every argument that is passed.
            last = (chunk.last_visible,) if cache.window and chunk.embeds else ()
            return sdpa_prompt.sdpa_prompt(
                q, k, v, chunk.input_pos, chunk.sequence, scale, cache.window, cache.ring, *last
            )
        k, v = self._sequence(cache.k, q.dtype), self._sequence(cache.v, q.dtype)
        return attend(q, k, v, self.mask, scale)

    def _sequence(self, buffer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the chunk's sequence of `k` or `v`: [kv_heads, slots, head_dim] as `dtype`."""
        if self._cache.sequences == 1:
            return read_entries(buffer, dtype)
        sequences = self._cache.by_sequence(buffer)
        return read_entries(sequences.index_select(1, self.chunk.sequence).squeeze(1), dtype)


View = StepView | PromptView


def view_of(rows: Rows, cache: KVCache) -> View:
    """Return the view that `rows` have of all caches of the kind of `cache`."""
    return PromptView(rows, cache) if isinstance(rows, PromptChunk) else StepView(rows, cache)


def copy_rows(caches: Iterable[KVCache], source: PromptChunk, target: PromptChunk) -> None:
    """Copy the entries at the positions of `source` to the same positions of another sequence.

    If `target.use_prompt_kernel`, each cache is copied by one operator, for programs on a GPU. In
    a ring the slots of the positions are copied, which may hold later positions than those of
    `source`.
    """
    copy = copy_rows_operator.copy_rows
    if not target.use_prompt_kernel:
        copy = copy_rows_operator.copy_rows_reference
    slots: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for cache in caches:
        kind = cache.slots, cache.window
        if kind not in slots:
            slots[kind] = PromptView(source, cache).row_slots, PromptView(target, cache).row_slots
        copy(cache.k, cache.v, *slots[kind])
