"""Eager checks of positions against what a cache holds."""

import torch
from torch import Tensor

from eagle_aot.errors import SettingError


class PositionGuard:
    """Remembers how many leading positions of one cache are valid and refuses gaps.

    Rolling back is allowed: writing at an earlier position truncates the valid prefix there. The
    checks read values, so they are skipped while a graph is traced.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.valid = 0

    def advance(self, rows: Tensor, input_pos: Tensor) -> None:
        """Admit `rows` [1, T, ...] at `input_pos` int64 [T].

        Raises SettingError for a batch, a length mismatch, positions that do not count up by one,
        a start beyond the valid prefix, or an end beyond the capacity.
        """
        if torch.compiler.is_compiling():
            return
        if rows.shape[0] != 1:
            raise SettingError(f"one sequence at a time: got a batch of {rows.shape[0]}")
        positions = input_pos.tolist()
        start, end = positions[0], positions[0] + rows.shape[1]
        if positions != list(range(start, end)):
            raise SettingError(f"positions must count up by one per row: got {positions}")
        if not 0 <= start <= self.valid:
            raise SettingError(f"position {start} leaves a gap: {self.valid} positions are filled")
        if end > self.capacity:
            raise SettingError(f"position {end - 1} is beyond the cache of {self.capacity}")
        self.valid = end

    def reset(self) -> None:
        """Forget everything: the next forward must start at position 0."""
        self.valid = 0
