"""Which tile size a kernel uses for a number of rows that is known only at run time.

Each tile size is a compiled program of its own, because a large tile is slow for few rows. A
compiled graph calls every program that may be needed; all grids but one are empty.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


class HoldsRows(Protocol):
    """A tile size of any kernel."""

    @property
    def rows(self) -> int:
        """The number of rows in a tile."""


Tile = TypeVar("Tile", bound=HoldsRows)


def tile_counts(rows: int, sizes: Sequence[Tile], above: int = 0) -> Iterator[tuple[Tile, int]]:
    """Yield each tile size with the number of tiles of `rows` rows; only one number is not 0.

    `sizes` are in ascending order, but the last may be smaller. One tile of the smallest size that
    holds all rows is used, or as many of the last as are needed; none for at most `above` rows. If
    a graph is traced for a range of rows, the numbers are expressions of `rows`, and sizes that no
    number in the range needs are left out.
    """
    smaller = above
    for tile in (size for size in sizes if size.rows > above):
        is_last = tile is sizes[-1]
        unused = rows <= smaller, not is_last and rows > tile.rows
        if not any(statically_known_true(condition) for condition in unused):
            count = one_if_positive(rows - smaller)
            tiles = (rows + tile.rows - 1) // tile.rows
            yield tile, count * (tiles if is_last else one_if_positive(tile.rows + 1 - rows))
        smaller = tile.rows


def one_if_positive(number: int) -> int:
    """Return 1 or 0 as an expression: a comparison would fix its outcome while tracing."""
    return torch.sym_max(0, torch.sym_min(1, number))
