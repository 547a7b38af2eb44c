"""In what tiles the large-M kernel takes a product."""

from dataclasses import dataclass

from eagle_aot.triton_kernels.device import fitting


@dataclass(frozen=True, slots=True)
class ProductTile:
    """What a program takes: `tiles` packed tiles, of 128 outputs each, of `rows` rows of x.

    `stages` are steps in flight. With `by_block` a step of two blocks, where all of a block is one
    group, is taken as two. None of these changes a bit: sums run along K in one order.
    """

    tiles: int
    rows: int
    warps: int
    stages: int
    by_block: bool = False


PRODUCT_TILES = {
    227: {1: ProductTile(1, 256, 8, 3), 2: ProductTile(1, 256, 8, 3, by_block=True)},
    99: {1: ProductTile(1, 128, 8, 3), 2: ProductTile(1, 128, 8, 3, by_block=True)},
}
"""By KiB of shared memory, for steps of one and of two blocks; the first as measured on an H100."""


def product_tile(blocks: int) -> ProductTile:
    """That of the GPU here, for steps of so many blocks."""
    return fitting(PRODUCT_TILES)[blocks]
