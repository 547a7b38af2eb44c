"""How a dense product of few rows is divided among programs; needs no triton."""

from dataclasses import dataclass

PROGRAMS_PER_MULTIPROCESSOR = 4
"""Programs that keep enough reads in flight, measured on an H100."""

FULL = 0.9
"""The share of those programs that counts as a full GPU."""

MAX_SPLITS = 8

STEP = 128
"""Smallest number of columns that one split takes."""


@dataclass(frozen=True, slots=True)
class DenseTile:
    """What a program computes: `features` outputs for `rows` rows of x, `columns` of K at a time.

    No size changes a bit: sums run along K in one order. `stages` is the number of steps in flight.
    """

    rows: int
    features: int
    columns: int
    stages: int


DENSE_TILES = (
    DenseTile(8, features=64, columns=128, stages=4),
    DenseTile(16, features=64, columns=128, stages=4),
    DenseTile(64, features=128, columns=64, stages=4),
    DenseTile(128, features=128, columns=64, stages=3),
)
"""Tiles measured on an H100, the last one on an H200, with four warps each."""


def choose_splits(features: int, columns: int, multiprocessors: int) -> int:
    """Return the smallest number of parts of K that fills a GPU; no part is empty."""
    tiles = -(-features // DENSE_TILES[0].features)
    steps = -(-columns // STEP)
    enough = FULL * PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    possible = [n for n in range(1, MAX_SPLITS + 1) if (n - 1) * -(-steps // n) < steps]
    return next((splits for splits in possible if tiles * splits >= enough), possible[-1])
