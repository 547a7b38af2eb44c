"""In what tiles the small-M kernel takes the rows of x, and which of its programs are launched.

Each width of a tile is a program of its own: a wide one is slow for few rows, and a compiled graph
learns only as it runs how many there are. So all that may be needed are called, with grids of which
all but one are empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


@dataclass(frozen=True, slots=True)
class RowTile:
    """How a program takes `rows` rows of x: its warps, its steps in flight, and whether it loads
    scales in pairs."""

    rows: int
    warps: int
    stages: int
    pairs: bool


ROW_TILES = {
    1: (
        RowTile(8, warps=4, stages=4, pairs=False),
        RowTile(16, warps=4, stages=4, pairs=True),
        RowTile(32, warps=4, stages=4, pairs=True),
        RowTile(64, warps=4, stages=3, pairs=False),
    ),
    2: (
        RowTile(8, warps=4, stages=3, pairs=False),
        RowTile(16, warps=4, stages=3, pairs=True),
        RowTile(32, warps=8, stages=3, pairs=True),
        RowTile(64, warps=8, stages=3, pairs=True),
    ),
}
"""For steps of one and of two blocks, as measured on an H100. Each tile is for the rows that the
one before it does not hold; the last is for any number, in turn."""


def numbers_of_tiles(rows: int, blocks: int) -> Iterator[tuple[RowTile, int]]:
    """The tiles that `rows` rows may take, and how many: of one kind all, of the others none.

    `blocks` are those of a step. Where a graph is traced for a range of rows, a number is an
    expression of them, and kinds outside the range are left out.
    """
    above, kinds = 0, ROW_TILES[blocks]
    for tile in kinds:
        last = tile is kinds[-1]
        outside = rows <= above, not last and rows > tile.rows
        if not any(statically_known_true(side) for side in outside):
            number = _one_if_positive(rows - above)
            most = (rows + tile.rows - 1) // tile.rows
            yield tile, number * (most if last else _one_if_positive(tile.rows + 1 - rows))
        above = tile.rows


def _one_if_positive(number: int) -> int:
    """Else 0. As an expression, where a graph is traced: a comparison would fix its outcome."""
    return torch.sym_max(0, torch.sym_min(1, number))
