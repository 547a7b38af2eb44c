"""What one program takes of a prompt's attention: plain numbers, without triton."""

from dataclasses import dataclass, replace

from eagle_aot.triton_kernels.device import fitting

HEAD_DIMS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class PromptTiling:
    """`row_tile` query rows, all heads of a group for each token, against `key_tile` keys at a
    time; `warps` and `stages` as Triton's. A head's values may be split between `parts` programs,
    each of which finds the scores again.

    Tiles of keys begin at multiples of `key_tile`, so that number decides a row's bits.
    """

    row_tile: int
    key_tile: int
    warps: int
    stages: int
    parts: int = 1


# What registers and shared memory of an H100 hold: 128 KiB of sums, and 192 to 224 KiB.
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
"""By KiB of shared memory, and by the head dimension, the last for less."""


def choose_tiling(head_dim: int) -> PromptTiling:
    """The tiling of a layer on the GPU here; of nothing else, so that rows keep their bits."""
    tilings = fitting(TILINGS)
    return tilings[max(head_dim, min(tilings))]


def is_tileable(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether the kernel holds all heads of a group for at least one token."""
    return (
        head_dim in HEAD_DIMS
        and heads % kv_heads == 0
        and heads // kv_heads <= choose_tiling(head_dim).row_tile
    )
