"""Tile sizes of the INT4 kernels."""

from dataclasses import dataclass

from eagle_aot.triton_kernels.device import fitting


@dataclass(frozen=True, slots=True)
class SmallMTile:
    """What a program of the small-M kernel computes: `first` rows of x and then `more` rows.

    Both are powers of two; `more` may be 0. `warps` and `stages` are Triton's. With `pairs` two
    scales are loaded together. With `whole` a block of the weight is multiplied as one, which
    needs more registers than a quarter at a time.
    """

    first: int
    warps: int
    stages: int
    more: int = 0
    pairs: bool = False
    whole: bool = False

    @property
    def rows(self) -> int:
        return self.first + self.more


SMALL_M_TILES = {
    1: (
        SmallMTile(8, warps=4, stages=4),
        SmallMTile(16, warps=4, stages=4, whole=True),
        SmallMTile(32, warps=4, stages=4, whole=True),
        SmallMTile(32, warps=4, stages=3, more=16, whole=True),
        SmallMTile(64, warps=8, stages=3, pairs=True),
        SmallMTile(64, warps=8, stages=3, more=16, pairs=True),
        SmallMTile(64, warps=8, stages=3, more=32, pairs=True, whole=True),
        SmallMTile(64, warps=8, stages=3, pairs=True),
    ),
    2: (
        SmallMTile(8, warps=4, stages=3),
        SmallMTile(16, warps=4, stages=3, pairs=True, whole=True),
        SmallMTile(32, warps=8, stages=3, pairs=True, whole=True),
        SmallMTile(32, warps=4, stages=3, more=16, whole=True),
        SmallMTile(64, warps=8, stages=3, pairs=True),
    ),
}
"""Tiles for steps of one and of two blocks, measured on an H100, above 64 rows on an H200. As many
of the last as are needed are for rows that no other holds; they read a weight together."""


@dataclass(frozen=True, slots=True)
class LargeMTile:
    """What a program of the large-M kernel computes: `tiles` tiles of 128 outputs, for `rows` rows.

    `stages` is the number of steps in flight. With `by_block` a step of two blocks, each a single
    group, is processed as two steps. No size changes a bit: sums run along K in one order.
    """

    tiles: int
    rows: int
    warps: int
    stages: int
    by_block: bool = False


LARGE_M_TILES = {
    227: {1: LargeMTile(1, 256, 8, 3), 2: LargeMTile(1, 256, 8, 3, by_block=True)},
    99: {1: LargeMTile(1, 128, 8, 3), 2: LargeMTile(1, 128, 8, 3, by_block=True)},
}
"""Tiles by KiB of shared memory, for steps of one and of two blocks; 227 KiB: measured on an H100.
"""


def large_m_tile(blocks: int) -> LargeMTile:
    """Return the tile for this GPU, for steps of `blocks` blocks."""
    return fitting(LARGE_M_TILES)[blocks]
