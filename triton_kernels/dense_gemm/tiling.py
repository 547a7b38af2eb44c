"""How a dense product of few rows is dealt out to programs: plain numbers, without triton."""

from dataclasses import dataclass

PROGRAMS_PER_MULTIPROCESSOR = 4
"""How many keep enough reads in flight, as measured on an H100."""

ENOUGH = 0.9
"""Of them."""

MAX_SPLITS = 8

STEP = 128
"""Columns of which no split takes a part."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """How a program takes `rows` rows of x: so many `features`, and `columns` at a time.

    Neither changes a bit: sums run along K in one order. `stages` are steps in flight.
    """

    rows: int
    features: int
    columns: int
    stages: int


ROW_TILES = (
    RowTile(8, features=64, columns=128, stages=4),
    RowTile(16, features=64, columns=128, stages=4),
    RowTile(64, features=128, columns=64, stages=4),
)
"""As measured on an H100, of four warps each."""


def choose_splits(features: int, columns: int, multiprocessors: int) -> int:
    """Among how many programs to split K: the fewest that fill a GPU. Every one has columns."""
    tiles = -(-features // ROW_TILES[0].features)
    steps = -(-columns // STEP)
    enough = ENOUGH * PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    possible = [n for n in range(1, MAX_SPLITS + 1) if (n - 1) * -(-steps // n) < steps]
    return next((splits for splits in possible if tiles * splits >= enough), possible[-1])
