"""What one program computes of a prompt's attention; needs no triton."""

from dataclasses import dataclass, replace

from eagle_aot.triton_kernels.device import fitting

HEAD_DIMS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class PromptTiling:
    """The tile sizes of the kernel.

    A program processes `row_tile` query rows (all heads of a group for each token) and `key_tile`
    keys at a time. `warps` and `stages` are Triton's. The values of a head may be split among
    `parts` programs, and each computes the scores again. Tiles of keys begin at multiples of
    `key_tile`, so a row's bits depend on it.
    """

    row_tile: int
    key_tile: int
    warps: int
    stages: int
    parts: int = 1


# Sizes that fit an H100: 128 KiB of sums in registers, 192 to 224 KiB in shared memory.
WIDEST = PromptTiling(128, 32, 8, 2, parts=2)
WIDE = PromptTiling(128, 64, 8, 2)
NARROW = PromptTiling(128, 64, 8, 3)

TILINGS = {
    227: {512: WIDEST, 256: WIDE, 128: NARROW},
    99: {
        512: replace(WIDEST, row_tile=64, key_tile=16),
        256: replace(WIDE, row_tile=64, key_tile=32),
        128: replace(NARROW, stages=2),
    },
}
"""Tilings by KiB of shared memory and by head dimension; the last one also for smaller heads."""


def choose_tiling(head_dim: int) -> PromptTiling:
    """Return the tiling for `head_dim` on this GPU; nothing else may change a row's bits."""
    tilings = fitting(TILINGS)
    return tilings[max(head_dim, min(tilings))]


def is_tileable(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether a tile holds all heads of a group for at least one token."""
    return (
        head_dim in HEAD_DIMS
        and heads % kv_heads == 0
        and heads // kv_heads <= choose_tiling(head_dim).row_tile
    )
