"""Attention of rows on a GPU: functions that programs for chunks and for tails use.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.kv_int8.kernel import (
    elements_as,
    load_pairs,
    scales_of,
    split_pairs,
)


@triton.jit
def chunk_length(reach: tl.tensor, CHUNK: tl.constexpr, SPLITS: tl.constexpr) -> tl.tensor:
    """Return what `tiling.chunk_length` returns, keys per chunk."""
    return (reach // (CHUNK * SPLITS) + 1) * CHUNK


@triton.jit
def first_chunk(
    reach: tl.tensor, TAIL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr
) -> tl.tensor:
    """Return the index of the chunk with the first key that a row of a ring sees."""
    return tl.maximum(reach + TAIL - WINDOW + 1, 0) // CHUNK


@triton.jit
def tile_items(
    sequence: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    kv_head: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Map a tile to ROWS rows of a sequence from `first_row` on, with GROUP heads each.

    Returns, for each of ROW_TILE tile rows, its row among those of all sequences, its index among
    all rows and heads, and whether it is used.
    """
    tile_row = tl.arange(0, ROW_TILE)
    row = sequence * rows + first_row + tile_row // GROUP
    item = row * HEADS + kv_head * GROUP + tile_row % GROUP
    return row, item, (tile_row < ROWS * GROUP) & (first_row + tile_row // GROUP < rows)


@triton.jit
def cache_lines(KEY_TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """Number the lines of 128 bytes in a tile of entries with elements of BITS bits, from 0 on."""
    return tl.arange(0, KEY_TILE * D * BITS // 1024)


@triton.jit
def prefetch(
    entries_ptr: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    KEY_TILE: tl.constexpr,
    D: tl.constexpr,
    PITCH: tl.constexpr,
) -> tl.tensor:
    """Start reading a tile of entries [.., D] from `first` on and before `end` into L2.

    Returns zeros, int32, one per cache line. They have to be used: torch assumes that a kernel may
    write all of its arguments if its assembly has another effect than its result.
    """
    BITS: tl.constexpr = entries_ptr.dtype.element_ty.primitive_bitwidth
    element = cache_lines(KEY_TILE, D, BITS) * (1024 // BITS)
    slot = first + element // D
    inside = (slot < end).to(tl.int32)
    return tl.inline_asm_elementwise(
        "{.reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0;}",
        "=r,l,r",
        [(entries_ptr + slot * PITCH + element % D).to(tl.int64), inside],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def queries(
    q_ptr: tl.tensor, item: tl.tensor, used: tl.tensor, D: tl.constexpr, PAIRED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Load the queries of a tile, [ROW_TILE, D], twice; with PAIRED even and odd elements of them,
    [ROW_TILE, D / 2] each."""
    q_ptr += item.to(tl.int64)[:, None] * D
    if PAIRED:
        column = 2 * tl.arange(0, D // 2)[None, :]
        q = tl.load(q_ptr + column, mask=used[:, None], other=0.0)
        q_odd = tl.load(q_ptr + column + 1, mask=used[:, None], other=0.0)
    else:
        q = tl.load(q_ptr + tl.arange(0, D)[None, :], mask=used[:, None], other=0.0)
        q_odd = q
    return q, q_odd


@triton.jit
def sums(
    ROW_TILE: tl.constexpr, D: tl.constexpr, PAIRED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the maximum, sum and output of a softmax over nothing, which `attend` adds to:
    [ROW_TILE], [ROW_TILE], and the output's elements like those of `queries`."""
    m_i = tl.full((ROW_TILE,), float("-inf"), tl.float32)
    l_i = tl.zeros((ROW_TILE,), tl.float32)
    if PAIRED:
        acc = tl.zeros((ROW_TILE, D // 2), tl.float32)
        acc_odd = tl.zeros((ROW_TILE, D // 2), tl.float32)
    else:
        acc = tl.zeros((ROW_TILE, D), tl.float32)
        acc_odd = l_i
    return m_i, l_i, acc, acc_odd


@triton.jit
def attend(
    q: tl.tensor,
    q_odd: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    visible: tl.tensor,
    m_i: tl.tensor,
    l_i: tl.tensor,
    acc: tl.tensor,
    acc_odd: tl.tensor,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    PITCH: tl.constexpr,
    PAIRED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Add the keys at `slot` [KEY_TILE] to a softmax: its running maximum (base 2), sum and output.

    Keys that are not `present` [KEY_TILE] may hold anything, including NaN; they are not read.
    `visible` [ROW_TILE, KEY_TILE]; `queries` and `sums` say what the others are. With PAIRED, INT8
    elements are read in pairs.
    """
    if PAIRED:
        pairs = load_pairs(v_ptr, slot, present, D, PITCH)
        even, odd = split_pairs(load_pairs(k_ptr, slot, present, D, PITCH), q.dtype)
        score = tl.dot(q, tl.trans(even), input_precision="ieee")
        score = tl.dot(q_odd, tl.trans(odd), score, input_precision="ieee") * SCALE
    else:
        offset = slot[:, None] * PITCH + tl.arange(0, D)[None, :]
        k = tl.load(k_ptr + offset, mask=present[:, None], other=0.0)
        v = tl.load(v_ptr + offset, mask=present[:, None], other=0.0)
        score = tl.dot(q, tl.trans(elements_as(k, q.dtype)), input_precision="ieee") * SCALE
    if k_ptr.dtype.element_ty == tl.int8:
        score *= scales_of(k_ptr, slot, present, D, PITCH)[None, :]
    score = tl.where(visible, score, float("-inf"))
    m_ij = tl.maximum(m_i, tl.max(score, 1))
    # For a row without a visible key so far, -inf - -inf would be NaN.
    base = tl.where(m_ij == float("-inf"), 0.0, m_ij)
    alpha = tl.exp2(m_i - base)
    p = tl.exp2(score - base[:, None])
    l_i = l_i * alpha + tl.sum(p, 1)
    if k_ptr.dtype.element_ty == tl.int8:
        p *= scales_of(v_ptr, slot, present, D, PITCH)[None, :]
    if PAIRED:
        even, odd = split_pairs(pairs, q.dtype)
        acc = tl.dot(p.to(q.dtype), even, acc * alpha[:, None], input_precision="ieee")
        acc_odd = tl.dot(p.to(q.dtype), odd, acc_odd * alpha[:, None], input_precision="ieee")
    else:
        v = elements_as(v, q.dtype)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_ij, l_i, acc, acc_odd


@triton.jit
def store_partial(
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    index: tl.tensor,
    field: tl.tensor,
    mask: tl.tensor,
    m_i: tl.tensor,
    l_i: tl.tensor,
    acc: tl.tensor,
    acc_odd: tl.tensor,
    D: tl.constexpr,
    PAIRED: tl.constexpr,
) -> None:
    """Store what a chunk adds to the rows and heads at `index`, for the second kernel."""
    if PAIRED:
        acc = tl.reshape(tl.join(acc, acc_odd), (acc.shape[0], D))
    # Divided by its largest element, a sum fits half precision for values of any range.
    peak = tl.maximum(tl.max(tl.abs(acc), 1), 1e-30)
    unit = acc * (1.0 / peak)[:, None]
    partial_ptr += index.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(partial_ptr, unit.to(partial_ptr.dtype.element_ty), mask=mask[:, None])
    tl.store(stats_ptr + index, m_i, mask=mask)
    tl.store(stats_ptr + field + index, l_i, mask=mask)
    tl.store(stats_ptr + 2 * field + index, peak, mask=mask)
