"""In what tiles the small-M kernel takes the rows of x."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowTile:
    """How a program takes rows of x: `first` of them and `more` behind, powers of two or none.

    `warps` and `stages` are Triton's. `pairs`: scales are loaded two at once. `whole`: a block of
    the weight is multiplied as one, which needs more registers than a quarter at a time.
    """

    first: int
    warps: int
    stages: int
    more: int = 0
    pairs: bool = False
    whole: bool = False

    @property
    def rows(self) -> int:
        """That it holds."""
        return self.first + self.more


ROW_TILES = {
    1: (
        RowTile(8, warps=4, stages=4),
        RowTile(16, warps=4, stages=4, whole=True),
        RowTile(32, warps=4, stages=4, whole=True),
        RowTile(32, warps=4, stages=3, more=16, whole=True),
        RowTile(64, warps=8, stages=3, pairs=True),
    ),
    2: (
        RowTile(8, warps=4, stages=3),
        RowTile(16, warps=4, stages=3, pairs=True, whole=True),
        RowTile(32, warps=8, stages=3, pairs=True, whole=True),
        RowTile(32, warps=4, stages=3, more=16, whole=True),
        RowTile(64, warps=8, stages=3, pairs=True),
    ),
}
"""For steps of one and of two blocks, as measured on an H100."""
