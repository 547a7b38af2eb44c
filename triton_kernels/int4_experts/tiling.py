"""Tile sizes of the experts' kernels."""

from dataclasses import dataclass

from eagle_aot.triton_kernels.device import fitting

MAX_FEW_ROWS = 64
"""Most rows of the kernel for few rows."""


@dataclass(frozen=True, slots=True)
class FewRowsTile:
    """What a program computes for up to `rows` rows: `outputs`, 64 or 128, of `width` of the rows
    that take its expert, and then of the next ones. `warps` and `stages` are Triton's."""

    rows: int
    width: int
    warps: int
    stages: int
    pairs: bool = False
    whole: bool = False
    outputs: int = 128

    @property
    def parts(self) -> int:
        """The programs of a packed tile of 128 outputs."""
        return 128 // self.outputs


FEW_ROWS_TILES: dict[int, tuple[FewRowsTile, ...]] = {
    1: (
        FewRowsTile(16, 8, warps=4, stages=4),
        FewRowsTile(MAX_FEW_ROWS, 16, warps=4, stages=4, whole=True),
    ),
    2: (
        FewRowsTile(8, 8, warps=4, stages=3),
        FewRowsTile(16, 16, warps=4, stages=3, pairs=True, whole=True),
        FewRowsTile(MAX_FEW_ROWS, 16, warps=4, stages=3, pairs=True, whole=True),
    ),
}
"""Tiles for steps of one and of two blocks. Those of one block were the fastest of 35 on an H100;
the others are those of the dense product."""

MANY_ROWS_TILES = {
    227: {
        1: FewRowsTile(0, 64, warps=8, stages=3, pairs=True),
        2: FewRowsTile(0, 64, warps=8, stages=3, pairs=True),
    },
    99: {
        1: FewRowsTile(0, 64, warps=8, stages=2, pairs=True),
        2: FewRowsTile(0, 64, warps=8, stages=2, pairs=True),
    },
}
"""Tiles of the kernel for many rows, by KiB of shared memory; `rows` is not used."""


def many_rows_tile(blocks: int) -> FewRowsTile:
    """Return the tile of the kernel for many rows on this GPU, for steps of `blocks` blocks."""
    return fitting(MANY_ROWS_TILES)[blocks]
