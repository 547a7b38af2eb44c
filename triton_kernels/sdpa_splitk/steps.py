"""Attention of rows on a GPU: what both kinds of programs have in common.

Importing this module needs triton.
"""

import triton
import triton.language as tl


@triton.jit
def chunk_length(reach: tl.tensor, CHUNK: tl.constexpr, SPLITS: tl.constexpr) -> tl.tensor:
    """`tiling.chunk_length`."""
    return (reach // (CHUNK * SPLITS) + 1) * CHUNK


@triton.jit
def first_chunk(
    reach: tl.tensor, TAIL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr
) -> tl.tensor:
    """The chunk of the first key that a row of a ring sees."""
    return tl.maximum(reach + TAIL - WINDOW + 1, 0) // CHUNK


@triton.jit
def places_of(
    sequence: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    kv_head: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What a tile holds: ROWS rows of a sequence from `first_row` on, GROUP heads of each.

    Returns for each of ROW_TILE places its row among those of all sequences, its item among those
    rows and heads, and whether there is one.
    """
    place = tl.arange(0, ROW_TILE)
    row = sequence * rows + first_row + place // GROUP
    item = row * HEADS + kv_head * GROUP + place % GROUP
    return row, item, (place < ROWS * GROUP) & (first_row + place // GROUP < rows)


@triton.jit
def lines(KEY_TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """Those of 128 bytes in a tile of entries whose elements have so many bits, counted from 0."""
    return tl.arange(0, KEY_TILE * D * BITS // 1024)


@triton.jit
def fetch(
    entries_ptr: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    KEY_TILE: tl.constexpr,
    D: tl.constexpr,
) -> tl.tensor:
    """Have L2 read a tile of entries [.., D] from `first` on, of those before `end`; nothing waits.

    Returns zeros, int32, one for each of the `lines`. They have to be used: torch takes a kernel
    with assembly of another effect than its result for one that may write all of its arguments.
    """
    BITS: tl.constexpr = entries_ptr.dtype.element_ty.primitive_bitwidth
    place = lines(KEY_TILE, D, BITS) * (1024 // BITS)
    inside = (first + place // D < end).to(tl.int32)
    return tl.inline_asm_elementwise(
        "{.reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0;}",
        "=r,l,r",
        [(entries_ptr + first * D + place).to(tl.int64), inside],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def queries(q_ptr: tl.tensor, item: tl.tensor, used: tl.tensor, D: tl.constexpr) -> tl.tensor:
    """Those of a tile's places, [ROW_TILE, D]."""
    q_ptr += item.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(q_ptr, mask=used[:, None], other=0.0)


@triton.jit
def attend(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    visible: tl.tensor,
    m_i: tl.tensor,
    l_i: tl.tensor,
    acc: tl.tensor,
    SCALE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A step of softmax over a tile of keys: the running maximum (base 2), sum and output."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
    score = tl.where(visible, score, float("-inf"))
    m_ij = tl.maximum(m_i, tl.max(score, 1))
    # Of a row that has seen no key yet, minus infinity less itself would be NaN.
    base = tl.where(m_ij == float("-inf"), 0.0, m_ij)
    alpha = tl.exp2(m_i - base)
    p = tl.exp2(score - base[:, None])
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_ij, l_i, acc


@triton.jit
def keep(
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    place: tl.tensor,
    field: tl.tensor,
    mine: tl.tensor,
    m_i: tl.tensor,
    l_i: tl.tensor,
    acc: tl.tensor,
    D: tl.constexpr,
) -> None:
    """Store what a chunk contributes to the rows and heads at `place`, for the second kernel."""
    # Divided by its largest element a sum fits half precision, whatever the values' range.
    peak = tl.maximum(tl.max(tl.abs(acc), 1), 1e-30)
    unit = acc * (1.0 / peak)[:, None]
    partial_ptr += place.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(partial_ptr, unit.to(partial_ptr.dtype.element_ty), mask=mine[:, None])
    tl.store(stats_ptr + place, m_i, mask=mine)
    tl.store(stats_ptr + field + place, l_i, mask=mine)
    tl.store(stats_ptr + 2 * field + place, peak, mask=mine)
