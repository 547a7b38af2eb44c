"""Attention of a few rows on a GPU: two Triton kernels that read a visible key once per row tile.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.

The first kernel deals a row's keys out to the device, one chunk per program, and keeps what each
chunk contributes; the second adds a row's chunks up. How long a row's chunks are follows from its
own position (`tiling.py`), tiles of keys start at fixed distances from their chunk's start, and a
key that a row may not see adds exactly nothing to it. So a row's bits depend on its position and
its visible keys alone: not on the rows beside it, nor on which tile it is in, and not on how long
the cache is.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.sdpa_splitk.tiling import Tiling, choose_tiling, tile_rows

LOG2_E = math.log2(math.e)

COMBINE_D = 64
"""Elements of a head per program of the second kernel."""


@triton.jit
def chunk_length(position: tl.tensor, CHUNK: tl.constexpr, SPLITS: tl.constexpr) -> tl.tensor:
    """`tiling.chunk_length`."""
    return (position // (CHUNK * SPLITS) + 1) * CHUNK


@triton.jit
def first_chunk(position: tl.tensor, WINDOW: tl.constexpr, CHUNK: tl.constexpr) -> tl.tensor:
    """The chunk of the first key that a row of a ring sees."""
    return tl.maximum(position - (WINDOW - 1), 0) // CHUNK


@triton.jit(do_not_specialize=["rows", "slots"])
def sdpa_splitk_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    pos_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    rows: tl.tensor,
    slots: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
) -> None:
    """What one chunk of one key/value head contributes to each of ROWS rows of `rows`.

    q [rows, HEADS, D], k and v [HEADS / GROUP, slots, D], pos int64 [rows] -> partial [SPLITS,
    rows, HEADS, D], the weighted sum of values divided by its largest element, and stats float32
    [3, SPLITS, rows, HEADS]: the largest score (base 2), the sum of weights, that element.

    Tiles of rows are the first axis of the grid, chunks the second: tiles that read the same keys
    run side by side, and all but one find them in L2. The third axis is the heads', in a flat cache
    twice, for neighbours whose chunks differ in length: its second half serves those with the
    longer chunks, and mostly there are none.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    first_row = tl.program_id(0) * ROWS
    split = tl.program_id(1)
    kv_head = tl.program_id(2) % KV_HEADS
    tile_row = tl.arange(0, ROW_TILE)
    row = first_row + tile_row // GROUP
    used = (tile_row < ROWS * GROUP) & (row < rows)
    pos = tl.load(pos_ptr + row, mask=used, other=-1).to(tl.int32)
    first = tl.load(pos_ptr + first_row).to(tl.int32)
    if WINDOW:
        reach = pos
        start = (first_chunk(first, WINDOW, CHUNK) + split) * CHUNK
        end = start + CHUNK
    else:
        length = chunk_length(first, CHUNK, SPLITS) + tl.program_id(2) // KV_HEADS * CHUNK
        reach = tl.where(chunk_length(pos, CHUNK, SPLITS) == length, pos, -1)
        start = split * length
        end = start + length
    bound = tl.max(reach, 0)
    if start > bound:
        return
    d = tl.arange(0, D)
    item = row * HEADS + kv_head * GROUP + tile_row % GROUP
    q_ptr += item.to(tl.int64)[:, None] * D
    q = tl.load(q_ptr + d[None, :], mask=used[:, None], other=0.0)
    k_ptr += kv_head.to(tl.int64) * slots * D
    v_ptr += kv_head.to(tl.int64) * slots * D
    top = tl.full((ROW_TILE,), float("-inf"), tl.float32)
    weight = tl.zeros((ROW_TILE,), tl.float32)
    acc = tl.zeros((ROW_TILE, D), tl.float32)
    for tile in range(start, tl.minimum(end, bound + 1), KEY_TILE):
        key = tile + tl.arange(0, KEY_TILE)
        present = key <= bound
        visible = key[None, :] <= reach[:, None]
        slot = key
        if WINDOW:
            present = present & (key > first - WINDOW)
            visible = visible & (key[None, :] > reach[:, None] - WINDOW)
            slot = key % (2 * WINDOW)
        place = slot[:, None] * D + d[None, :]
        # What no row sees may be anything, NaN included: it is not read.
        k = tl.load(k_ptr + place, mask=present[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        score = tl.where(visible, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        # Of a row that has seen no key yet, minus infinity less itself would be NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        fade = tl.exp2(top - base)
        share = tl.exp2(score - base[:, None])
        weight = weight * fade + tl.sum(share, 1)
        v = tl.load(v_ptr + place, mask=present[:, None], other=0.0)
        acc = tl.dot(share.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = new_top
    # Divided by its largest element a sum fits half precision, whatever the values' range.
    peak = tl.maximum(tl.max(tl.abs(acc), 1), 1e-30)
    unit = acc * (1.0 / peak)[:, None]
    place = split * rows * HEADS + item
    mine = reach >= 0
    tl.store(
        partial_ptr + place.to(tl.int64)[:, None] * D + d[None, :],
        unit.to(partial_ptr.dtype.element_ty),
        mask=mine[:, None],
    )
    field = SPLITS * rows * HEADS
    tl.store(stats_ptr + place, top, mask=mine)
    tl.store(stats_ptr + field + place, weight, mask=mine)
    tl.store(stats_ptr + 2 * field + place, peak, mask=mine)


@triton.jit(do_not_specialize=["rows"])
def sdpa_combine_kernel(
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    pos_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
    D_TILE: tl.constexpr,
) -> None:
    """A stretch of one row and head of out [rows, HEADS, D], from what `sdpa_splitk_kernel` left.

    All chunks are added in one tile: in an order that is fixed by their distance from the row's
    first one, with zeros for those behind its last one.
    """
    item = tl.program_id(0)
    d = tl.program_id(1) * D_TILE + tl.arange(0, D_TILE)
    split = tl.arange(0, SPLIT_TILE)
    row = item // HEADS
    pos = tl.load(pos_ptr + row).to(tl.int32)
    if WINDOW:
        own = first_chunk(pos, WINDOW, CHUNK)
        live = own + split <= pos // CHUNK
        # The chunks that were run start with those of the tile's first row.
        first = tl.load(pos_ptr + row // ROWS * ROWS).to(tl.int32)
        split += own - first_chunk(first, WINDOW, CHUNK)
    else:
        live = split <= pos // chunk_length(pos, CHUNK, SPLITS)
    place = split * rows * HEADS + item
    field = SPLITS * rows * HEADS
    top = tl.load(stats_ptr + place, mask=live, other=float("-inf"))
    weight = tl.load(stats_ptr + field + place, mask=live, other=0.0)
    peak = tl.load(stats_ptr + 2 * field + place, mask=live, other=0.0)
    unit = tl.load(
        partial_ptr + place.to(tl.int64)[:, None] * D + d[None, :],
        mask=live[:, None],
        other=0.0,
    )
    share = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(unit.to(tl.float32) * (share * peak)[:, None], 0)
    out = total / tl.sum(share * weight, 0)
    tl.store(out_ptr + item.to(tl.int64) * D + d, out.to(out_ptr.dtype.element_ty))


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_pos: Tensor,
    scale: float,
    window: int,
    tiling: Tiling | None = None,
) -> Tensor:
    """Attention as calls of the kernels: arguments and result as for `op.sdpa_splitk`.

    `tiling` is for comparisons: it replaces the one that the layer's shape is given.
    """
    _, rows, heads, head_dim = q.shape
    kv_heads, slots = k.shape[1], k.shape[2]
    tiles = tiling or choose_tiling(heads, kv_heads, head_dim, window)
    kept = torch.float32 if q.dtype == torch.float32 else torch.float16
    partial = q.new_empty((tiles.splits, rows, heads, head_dim), dtype=kept)
    stats = q.new_empty((3, tiles.splits, rows, heads), dtype=torch.float32)
    out = q.new_empty((1, rows, heads, head_dim))
    group = heads // kv_heads
    rows_of_tile = tile_rows(tiles, group, window)
    layer = {"HEADS": heads, "D": head_dim, "WINDOW": window}
    layer |= {"CHUNK": tiles.chunk, "SPLITS": tiles.splits, "ROWS": rows_of_tile}
    row_tiles = triton.cdiv(rows, rows_of_tile)
    wrap_triton(sdpa_splitk_kernel)[(row_tiles, tiles.splits, kv_heads * (1 if window else 2))](
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        input_pos.contiguous(),
        partial,
        stats,
        rows,
        slots,
        SCALE=scale * LOG2_E,
        GROUP=group,
        ROW_TILE=tiles.row_tile,
        KEY_TILE=tiles.key_tile,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **layer,
    )
    wrap_triton(sdpa_combine_kernel)[(rows * heads, triton.cdiv(head_dim, COMBINE_D))](
        partial,
        stats,
        input_pos.contiguous(),
        out,
        rows,
        SPLIT_TILE=triton.next_power_of_2(tiles.splits),
        D_TILE=min(head_dim, COMBINE_D),
        num_warps=4,
        **layer,
    )
    return out
