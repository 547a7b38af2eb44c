"""How the keys of a row are divided among programs; needs no triton.

A row at position p of a flat cache reads its keys in chunks of `chunk_length(p)`: the shortest
multiple of `chunk` with which `splits` chunks reach p. One program processes one chunk. So the GPU
is full at every context length, partial results stay small, and neither grows with the cache. A row
of a ring reads its window in chunks that start at multiples of `chunk`.
"""

import math
from dataclasses import dataclass, replace

import torch

from eagle_aot.triton_kernels.device import H100, capability, fitting

LOG2_E = math.log2(math.e)
"""What scores are multiplied by, whose powers of 2 are weights."""

TAIL = 16
"""Keys of a row's own path whose slots are given; all keys before them are in order."""

TILE_ROWS = 8
"""Consecutive rows that always fit one program: a round is one tile, a prompt many."""

WGMMA_ROWS = 64
"""The rows of Hopper's matrix instructions; fewer rows cost the same."""

MMA_ROWS = 16

MANY_ROWS = 128
"""Rows that are too many for four warps at any head dimension."""

MAX_TILE = 64 * 512
"""Maximum elements of the sum of values, which a program holds in registers."""

MAX_SPLITS = 128
"""Maximum chunks of a row, because the second kernel adds them in one tile."""

HEAD_DIMS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tile sizes for a cache; they depend on the layer's shape, not on rows or cache length.

    A program processes `row_tile` query rows (at least `TILE_ROWS` rows of all heads of a group)
    and `key_tile` keys at a time. `chunk` and `splits` are described above, `warps` and `stages`
    are Triton's. With `ahead` the next tile is prefetched into L2 before the current one is used,
    which INT8 entries are not.
    """

    row_tile: int
    key_tile: int
    chunk: int
    splits: int
    warps: int
    stages: int
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class TilingPlan:
    """A tiling before the layer's number of heads is known.

    `programs` should run at the same time. `warp_elements` is the number of elements of the sum of
    values that a warp holds.
    """

    min_rows: int
    key_tile: int
    chunk: int
    programs: int
    warps: int
    stages: int
    warp_elements: int = 4096
    ahead: bool = False


# One to three programs for each of an H100's 132 multiprocessors, as many as fit.
FLAT = {
    512: TilingPlan(WGMMA_ROWS, 32, 32, 132, 8, 2, ahead=True),
    256: TilingPlan(WGMMA_ROWS, 32, 32, 264, 4, 2),
    128: TilingPlan(WGMMA_ROWS, 64, 64, 264, 4, 2),
    64: TilingPlan(WGMMA_ROWS, 64, 64, 396, 4, 2),
}
RING = TilingPlan(MMA_ROWS, 64, 128, 0, 4, 2)
TALL_RING = replace(RING, key_tile=32, stages=3)  # for many rows, which need registers
WIDE_RING = replace(RING, key_tile=32, warps=8)  # for heads of 512

# For other generations, whose matrix instructions take 16 rows.
SMALL_FLAT = {
    dim: replace(plan, min_rows=MMA_ROWS, warp_elements=2048) for dim, plan in FLAT.items()
}
SMALL_FLAT[512] = replace(SMALL_FLAT[512], key_tile=16, ahead=False)
SMALL_RING = replace(TALL_RING, warp_elements=2048)

WIDE = Tiling(WGMMA_ROWS, key_tile=64, chunk=16, splits=0, warps=16, stages=2)
"""What `wide.cu` is written for, where `stages` mean nothing and a chunk may end within a tile of
keys. Splits depend on the layer."""

PLANS = {
    227: (FLAT, {512: WIDE_RING, 256: RING}),
    99: (SMALL_FLAT, {512: replace(WIDE_RING, key_tile=16), 256: SMALL_RING}),
}
"""Plans of flat caches and of rings, by KiB of shared memory and by head dimension; the last plan
is also for smaller heads."""


def choose_tiling(
    heads: int, kv_heads: int, head_dim: int, window: int, *, int8: bool = False
) -> Tiling:
    """Return the tiling of a layer on this GPU; its cache is a ring if `window` is not 0."""
    flat, ring = fitting(PLANS)
    plans = ring if window else flat
    plan = plans[max(head_dim, min(plans))]
    rows = max(plan.min_rows, row_tile(heads // kv_heads))
    if plan is RING and rows >= WGMMA_ROWS:
        plan = TALL_RING
    if int8 and window:
        # With the warps of other entries, this kernel has 42 kB of code: it stays in a
        # multiprocessor's cache between layers, as 92 kB did not. Measured on an H200.
        plan = replace(plan, key_tile=min(plan.key_tile, 32), stages=2)
    elif int8:
        plan = replace(plan, stages=3, ahead=False)
    tokens = rows // (heads // kv_heads)
    chunk = ring_chunk(window, plan.chunk, tokens) if window else plan.chunk
    splits = ring_splits(window, chunk, tokens) if window else flat_splits(plan, kv_heads)
    # Twice the warps have twice the registers.
    filled = max(plan.warps, min(8, rows * head_dim // plan.warp_elements))
    warps = 8 if rows >= MANY_ROWS else filled
    return Tiling(rows, plan.key_tile, chunk, splits, warps, plan.stages, plan.ahead)


def is_wide(heads: int, kv_heads: int, head_dim: int, window: int, *dtypes: torch.dtype) -> bool:
    """Whether `wide.cu` serves a layer on this GPU, with queries and entries of `dtypes`."""
    shape = head_dim == 512 and not window and 2 <= heads // kv_heads <= WIDE.row_tile // TILE_ROWS
    return shape and set(dtypes) == {torch.bfloat16} and capability() == H100


def wide_tiling(kv_heads: int) -> Tiling:
    """Return the tiling of a layer that `is_wide`."""
    return replace(WIDE, splits=flat_splits(FLAT[512], kv_heads))


def flat_splits(plan: TilingPlan, kv_heads: int) -> int:
    """Return the chunks of a row of a flat cache; one program per head is for a row's tail."""
    return min(MAX_SPLITS, max(1, plan.programs // kv_heads - 1))


def row_tile(group: int) -> int:
    """Return the size of a tile for `TILE_ROWS` rows of `group` heads, a power of two."""
    return 1 << max(TILE_ROWS * group - 1, MMA_ROWS - 1).bit_length()


def tile_rows(tiling: Tiling, group: int) -> int:
    """Return the rows per tile of a layer with `group` query heads per key head.

    A tile is filled, because it reads its keys once for all rows; but the rows of a flat cache may
    have chunks of two lengths at most.
    """
    return min(tiling.row_tile // group, tiling.chunk * tiling.splits)


def tail_rows(tiling: Tiling, group: int) -> int:
    """Return the rows whose tails one program processes: about as many keys as a chunk has.

    With two stages gathered keys are not prefetched, so it is one tile of keys.
    """
    keys = tiling.chunk if tiling.stages > 2 else tiling.key_tile
    return min(tile_rows(tiling, group), keys // TAIL)


def ring_chunk(window: int, shortest: int, rows: int) -> int:
    """Return the chunk length of a ring: `shortest`, doubled until `MAX_SPLITS` chunks suffice."""
    chunk = shortest
    while ring_splits(window, chunk, rows) > MAX_SPLITS:
        chunk *= 2
    return chunk


def ring_splits(window: int, chunk: int, rows: int) -> int:
    """Return the maximum number of chunks with committed keys of a tile of `rows` rows."""
    keys = window - TAIL + spread(rows)
    return (keys + chunk - 2) // chunk + 1


def spread(rows: int) -> int:
    """Return the maximum distance of positions in a tile of `rows` rows of a tree or chain."""
    return max(TAIL, rows) - 1


def chunk_length(reach: int, tiling: Tiling) -> int:
    """Return the keys per chunk for a row of a flat cache; its last committed key is at `reach`."""
    return (reach // (tiling.chunk * tiling.splits) + 1) * tiling.chunk


def reads_pairs(row_tile: int, head_dim: int) -> bool:
    """Whether a program reads INT8 elements in pairs: operands of Hopper's instructions for many
    rows are copied anyway, and halves of a head have at least 16 elements."""
    return row_tile < WGMMA_ROWS and head_dim >= 32


def is_tileable(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether the kernels support a layer of this shape, with either kind of cache."""
    return (
        head_dim in HEAD_DIMS
        and heads % kv_heads == 0
        and row_tile(heads // kv_heads) * head_dim <= MAX_TILE
    )
