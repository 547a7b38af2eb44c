"""How the keys of a row are dealt out to programs: plain numbers, without triton.

A row at position p of a flat cache reads its keys in chunks of `chunk_length(p)`, the shortest
multiple of `chunk` of which `splits` reach that far; one program takes one chunk. So the device is
full at every length of text, what the chunks leave behind stays small, and neither grows with the
cache. A row of a ring reads its window in chunks that start at multiples of `chunk`.
"""

from dataclasses import dataclass, replace

from eagle_aot.triton_kernels.device import fitting

TAIL = 16
"""Keys of a row's own path that are named slot by slot; all before them lie in order."""

TILE_ROWS = 8
"""Consecutive rows that one program can always hold: a round's are one tile, a prompt's many."""

WGMMA_ROWS = 64
"""The rows of Hopper's matrix instructions: fewer cost as much."""

MMA_ROWS = 16

MANY_ROWS = 128
"""Rows that four warps do not hold, whatever the head dimension."""

MAX_TILE = 64 * 512
"""Elements of the largest sum of values that one program holds in registers."""

MAX_SPLITS = 128
"""Chunks of a row at most, because the second kernel adds them in one tile."""

HEAD_DIMS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The walk over a cache; of the layer's shape alone, never of rows or of the cache's length.

    `row_tile` query rows (all heads of a group, `TILE_ROWS` each, however few there are) against
    `key_tile` keys at a time; `chunk` and `splits` as above, `warps` and `stages` as Triton's.
    `ahead`: L2 is asked for the next tile before this one is worked on.
    """

    row_tile: int
    key_tile: int
    chunk: int
    splits: int
    warps: int
    stages: int
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A tiling before the layer's number of heads is known.

    Of sums of values a warp holds `held` elements.
    """

    min_rows: int
    key_tile: int
    chunk: int
    programs: int
    warps: int
    stages: int
    held: int = 4096
    ahead: bool = False


# One to three programs for each of an H100's 132 multiprocessors, as many as fit there at once.
FLAT = {
    512: Plan(WGMMA_ROWS, 32, 32, 132, 8, 2, ahead=True),
    256: Plan(WGMMA_ROWS, 32, 32, 264, 4, 2),
    128: Plan(WGMMA_ROWS, 64, 64, 264, 4, 2),
    64: Plan(WGMMA_ROWS, 64, 64, 396, 4, 2),
}
RING = Plan(MMA_ROWS, 32, 128, 0, 4, 3)
WIDE_RING = replace(RING, warps=8, stages=2)  # of heads of 512 three stages do not fit

# Those of other generations, whose matrix instructions take 16 rows.
SMALL_FLAT = {dim: replace(plan, min_rows=MMA_ROWS, held=2048) for dim, plan in FLAT.items()}
SMALL_FLAT[512] = replace(SMALL_FLAT[512], key_tile=16, ahead=False)
SMALL_RING = replace(RING, held=2048)

PLANS = {
    227: (FLAT, {512: WIDE_RING, 256: RING}),
    99: (SMALL_FLAT, {512: replace(WIDE_RING, key_tile=16), 256: SMALL_RING}),
}
"""By KiB of shared memory: of flat caches, of rings. By the head dimension, the last for less."""


def choose_tiling(heads: int, kv_heads: int, head_dim: int, window: int) -> Tiling:
    """On the GPU here, that of a layer of these numbers of heads, a ring if `window` is not 0."""
    flat, ring = fitting(PLANS)
    plans = ring if window else flat
    plan = plans[max(head_dim, min(plans))]
    rows = max(plan.min_rows, row_tile(heads // kv_heads))
    held = rows // (heads // kv_heads)
    chunk = ring_chunk(window, plan.chunk, held) if window else plan.chunk
    # Of each head one program is left for a row's tail.
    flat_splits = min(MAX_SPLITS, max(1, plan.programs // kv_heads - 1))
    splits = ring_splits(window, chunk, held) if window else flat_splits
    # Registers hold twice the rows where twice the warps do.
    warps = 8 if rows >= MANY_ROWS else max(plan.warps, min(8, rows * head_dim // plan.held))
    return Tiling(rows, plan.key_tile, chunk, splits, warps, plan.stages, plan.ahead)


def row_tile(group: int) -> int:
    """Rows of a tile that holds `TILE_ROWS` rows of `group` heads: a power of two."""
    return 1 << max(TILE_ROWS * group - 1, MMA_ROWS - 1).bit_length()


def tile_rows(tiling: Tiling, group: int) -> int:
    """Rows of one tile, of a layer with `group` query heads to a key head.

    All that it has room for, as what a tile reads is read once for them; in a flat cache no more
    than have chunks of two lengths at most.
    """
    return min(tiling.row_tile // group, tiling.chunk * tiling.splits)


def tail_rows(tiling: Tiling, group: int) -> int:
    """Rows whose tails one program takes: as many keys as a chunk has, so that it takes as long.

    One step's where two stages fetch nothing ahead that is found through a list.
    """
    keys = tiling.chunk if tiling.stages > 2 else tiling.key_tile
    return min(tile_rows(tiling, group), keys // TAIL)


def ring_chunk(window: int, shortest: int, rows: int) -> int:
    """The chunk of a ring's keys: `shortest`, doubled until `MAX_SPLITS` of them reach."""
    chunk = shortest
    while ring_splits(window, chunk, rows) > MAX_SPLITS:
        chunk *= 2
    return chunk


def ring_splits(window: int, chunk: int, rows: int) -> int:
    """Chunks that the committed keys of a tile of `rows` rows may touch."""
    keys = window - TAIL + spread(rows)
    return (keys + chunk - 2) // chunk + 1


def spread(rows: int) -> int:
    """How far apart the positions of a tile of `rows` rows may be: a tree's, or a chain's."""
    return max(TAIL, rows) - 1


def chunk_length(reach: int, tiling: Tiling) -> int:
    """Keys per chunk of a row of a flat cache whose last committed key is at `reach`."""
    return (reach // (tiling.chunk * tiling.splits) + 1) * tiling.chunk


def is_tileable(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether the kernels hold a layer of these numbers of heads, in either kind of cache."""
    return (
        head_dim in HEAD_DIMS
        and heads % kv_heads == 0
        and row_tile(heads // kv_heads) * head_dim <= MAX_TILE
    )
