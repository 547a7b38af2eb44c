"""Eager checks that the positions of a forward fit what a cache holds."""

import torch
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.step import SCRATCH_SLOTS, TAIL, longest_chunk, ring_slots


class PositionGuard:
    """Tracks how many leading positions of one sequence's cache are valid and refuses other reads.

    Writing at an earlier position is a rollback: it truncates the valid prefix there. A sequence
    may reach into the scratch slots after `max_seq_len`. A ring cache for `ring_window` (0: flat)
    and chunks of `chunk` rows limits the length of a forward and the distance of a rollback.
    Recurrent states (`has_states`) have taken in what lies before the last step, so that a text can
    continue nowhere before. The checks read values, so they are skipped while a graph is traced.
    """

    def __init__(self, max_seq_len: int, ring_window: int = 0, chunk: int = 0) -> None:
        self.capacity = max_seq_len + SCRATCH_SLOTS
        self.ring_window, self.chunk = ring_window, chunk
        self.has_states = False
        self.valid = 0
        self.kept = 0  # positions that states have taken in
        self.written = 0  # positions that the ring has held, including those rolled back

    def advance(self, rows: Tensor, input_pos: Tensor) -> None:
        """Accept `rows` [1, T, ...] at `input_pos` int64 [T].

        Raises SettingError for a batch, no rows, a length mismatch, positions that do not count up
        by one, a start after the valid prefix, an end beyond the capacity, and for what a ring
        cannot hold.
        """
        if torch.compiler.is_compiling():
            return
        if rows.shape[0] != 1:
            raise SettingError(f"one sequence at a time: got a batch of {rows.shape[0]}")
        if not rows.shape[1]:
            raise SettingError("no rows: a forward takes at least one")
        positions = input_pos.tolist()
        start, end = positions[0], positions[0] + rows.shape[1]
        if positions != list(range(start, end)):
            raise SettingError(f"positions must count up by one per row: got {positions}")
        if not 0 <= start <= self.valid:
            raise SettingError(f"position {start} leaves a gap: {self.valid} positions are filled")
        if end > self.capacity:
            raise SettingError(f"position {end - 1} is beyond the cache of {self.capacity}")
        if self.ring_window:
            self._check_ring(start, end)
        if self.has_states:
            self._check_states(start, end)
        self.valid = end
        self.written = max(end, self.written) if start else end

    def reset(self) -> None:
        """Start over: the next forward must begin at position 0."""
        self.valid = self.written = self.kept = 0

    def _check_states(self, start: int, end: int) -> None:
        """Raise SettingError for rows that do not follow what states have taken in."""
        if 0 < start < self.kept:
            raise SettingError(f"position {start}: states hold {self.kept} positions: restart at 0")
        if start > self.kept and end - start > TAIL:
            raise SettingError(f"{end - start} rows after those of a step: at most {TAIL} fit")
        self.kept = start if end - start <= TAIL else end

    def _check_ring(self, start: int, end: int) -> None:
        """Raise SettingError if later rows have overwritten the window before a row."""
        reach = longest_chunk(self.ring_window, self.chunk)
        if end - start > reach and end > ring_slots(self.ring_window, self.chunk):
            raise SettingError(f"{end - start} rows at position {start}: at most {reach} fit")
        if start and self.written - start > reach:
            raise SettingError(
                f"position {start} is more than {reach} back from {self.written}: restart at 0"
            )
