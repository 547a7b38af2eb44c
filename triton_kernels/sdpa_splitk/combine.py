"""Attention of rows on a GPU: the second kernel, which adds up the partial results of chunks.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.sdpa_splitk.steps import chunk_length, first_chunk


@triton.jit(do_not_specialize=["items"])
def sdpa_combine_kernel(
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    out_ptr: tl.tensor,
    items: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    TAIL: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
    D_TILE: tl.constexpr,
) -> None:
    """Compute D_TILE elements of one row and head of out [items, D], from partial results.

    All chunks are added in one tile, in an order that is fixed by their distance from the row's
    first chunk, with zeros after its last one. The tail is added to their sum.
    """
    item = tl.program_id(0)
    d = tl.program_id(1) * D_TILE + tl.arange(0, D_TILE)
    split = tl.arange(0, SPLIT_TILE)
    position = tl.load(positions_ptr + item // HEADS).to(tl.int32)
    reach = position - TAIL
    if WINDOW:
        chunk = first_chunk(reach, TAIL, WINDOW, CHUNK) + split
        live = chunk * CHUNK <= reach
        split = chunk % SPLITS
    else:
        live = split * chunk_length(reach, CHUNK, SPLITS) <= reach
    index = split * items + item
    field = (SPLITS + 1) * items
    m_i = tl.load(stats_ptr + index, mask=live, other=float("-inf"))
    l_i = tl.load(stats_ptr + field + index, mask=live, other=0.0)
    peak = tl.load(stats_ptr + 2 * field + index, mask=live, other=0.0)
    partial = partial_ptr + index.to(tl.int64)[:, None] * D + d[None, :]
    unit = tl.load(partial, mask=live[:, None], other=0.0).to(tl.float32)
    # Padding has no partial results: it becomes 0 / 1.
    is_row = position >= 0
    index = SPLITS * items + item
    tail_m = tl.load(stats_ptr + index, mask=is_row, other=0.0)
    tail_l = tl.load(stats_ptr + field + index, mask=is_row, other=1.0)
    tail_peak = tl.load(stats_ptr + 2 * field + index, mask=is_row, other=0.0)
    tail_unit = tl.load(partial_ptr + index.to(tl.int64) * D + d, mask=is_row, other=0.0)
    max_m = tl.maximum(tl.max(m_i, 0), tail_m)
    alpha = tl.exp2(m_i - max_m)
    tail_alpha = tl.exp2(tail_m - max_m)
    acc = tl.sum(unit * (alpha * peak)[:, None], 0)
    acc += tail_unit.to(tl.float32) * (tail_alpha * tail_peak)
    out = acc / (tl.sum(alpha * l_i, 0) + tail_alpha * tail_l)
    tl.store(out_ptr + item.to(tl.int64) * D + d, out.to(out_ptr.dtype.element_ty))
