"""In what tiles a kernel takes rows, and which of its programs are launched.

Each width of a tile is a program of its own: a wide one is slow for few rows, and a compiled graph
learns only as it runs how many there are. So all that may be needed are called, with grids of which
all but one are empty.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


class HoldsRows(Protocol):
    """A tile, of whatever kind."""

    @property
    def rows(self) -> int:
        """That it holds."""


Tile = TypeVar("Tile", bound=HoldsRows)


def numbers_of_tiles(rows: int, kinds: Sequence[Tile]) -> Iterator[tuple[Tile, int]]:
    """The tiles that `rows` rows may take, and how many: of one kind all, of the others none.

    Kinds ascend; each is for the rows that the one before it does not hold, the last for any
    number, in turn. Where a graph is traced for a range of rows, a number is an expression of them,
    and kinds outside the range are left out.
    """
    above = 0
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
