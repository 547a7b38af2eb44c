"""Attention of a prompt's rows on a GPU: a Triton kernel that reads only visible keys.

Importing this module needs triton. The operator of `op.py` imports it only to run on a GPU or to be
lowered for one.

A program processes all query heads of a key head for a tile of rows, and all columns of the values
or a part of them. It iterates over the visible keys in order of position, in tiles that begin at
multiples of their length. A masked key adds exactly 0 to a row, and one loop serves tiles with and
without masked keys. So a row's bits depend only on its position and its visible keys.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.kv_int8.kernel import elements_as, scales_of, with_strides
from eagle_aot.triton_kernels.sdpa_prompt.tiling import PromptTiling, choose_tiling
from eagle_aot.triton_kernels.sdpa_splitk.tiling import LOG2_E


@triton.jit(do_not_specialize=["rows", "of_head", "of_cache"])
def sdpa_prompt_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    input_pos_ptr: tl.tensor,
    sequence_ptr: tl.tensor,
    last_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    of_head: tl.tensor,
    of_cache: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    PITCH: tl.constexpr,
    VALUES: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Attend with ROWS rows of all query heads of a key head: q, out [rows, HEADS, D].

    k and v are [HEADS / GROUP, caches, slots, ENTRY], INT8 where ENTRY is not D, with strides of
    `of_head` and `of_cache` entries and PITCH elements; a program computes VALUES columns of the
    values. With AHEAD a row also sees positions up to `last`. Programs of one head are neighbours,
    which find its keys in L2; those of the last rows, which see the most keys, come first.
    """
    PARTS: tl.constexpr = D // VALUES
    rows = tl.full((), rows, tl.int32)  # a size is passed as 64 bits, or as a known number
    row_tiles = tl.cdiv(rows, ROWS)
    program = tl.program_id(0) // PARTS
    first_column = tl.program_id(0) % PARTS * VALUES
    kv_head = program // row_tiles
    first_row = (row_tiles - 1 - program % row_tiles) * ROWS
    tile_row = tl.arange(0, ROW_TILE)
    row = first_row + tile_row // GROUP
    used = (tile_row < ROWS * GROUP) & (row < rows)
    start = tl.load(input_pos_ptr).to(tl.int32)
    cache = tl.load(sequence_ptr)
    position = start + row
    low = start + first_row
    high = start + tl.minimum(first_row + ROWS, rows) - 1
    last, end = position, high
    if AHEAD:
        last_visible = tl.load(last_ptr + row, mask=used, other=-1).to(tl.int32)
        last = tl.maximum(position, last_visible)
        end = tl.maximum(high, tl.max(last_visible, 0))
    d, columns = tl.arange(0, D), first_column + tl.arange(0, VALUES)
    item = row * HEADS + kv_head * GROUP + tile_row % GROUP  # 32 bits: 131,072 rows of 16,384
    q = tl.load(q_ptr + item[:, None] * D + d[None, :], mask=used[:, None], other=0.0)
    first_entry = (kv_head.to(tl.int64) * of_head + cache * of_cache) * ENTRY
    k_ptr += first_entry
    v_ptr += first_entry
    m_i = tl.full((ROW_TILE,), float("-inf"), tl.float32)
    l_i = tl.zeros((ROW_TILE,), tl.float32)
    acc = tl.zeros((ROW_TILE, VALUES), tl.float32)
    least = tl.maximum(low - WINDOW + 1, 0) if WINDOW else 0
    for tile in range(least // KEY_TILE * KEY_TILE, end + 1, KEY_TILE):
        key = tile + tl.arange(0, KEY_TILE)
        slot = key % RING if WINDOW else key
        # Keys that no row sees may hold anything, including NaN.
        seen = (key <= end) & (key >= least)
        present = seen[:, None]
        k = tl.load(k_ptr + slot[:, None] * PITCH + d[None, :], mask=present, other=0.0)
        score = tl.dot(q, tl.trans(elements_as(k, q.dtype)), input_precision="ieee")
        if k_ptr.dtype.element_ty == tl.int8:
            score *= scales_of(k_ptr, slot, seen, D, PITCH)[None, :]
        seen_by_all = tile + KEY_TILE <= low + 1
        if WINDOW:
            seen_by_all &= tile > high - WINDOW
        if not seen_by_all:
            visible = key[None, :] <= last[:, None]
            if WINDOW:
                visible = visible & (key[None, :] > position[:, None] - WINDOW)
            score = tl.where(visible, score, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(score, 1))
        # For a row without a visible key so far, -inf - -inf would be NaN.
        base = tl.where(m_ij == float("-inf"), 0.0, m_ij)
        # The difference is scaled afterwards, so that an unchanged maximum gives exactly alpha = 1.
        alpha = tl.exp2((m_i - base) * SCALE)
        p = tl.exp2(tl.fma(score, SCALE, -(base * SCALE)[:, None]))
        l_i = tl.fma(l_i, alpha, tl.sum(p, 1))
        v = tl.load(v_ptr + slot[:, None] * PITCH + columns[None, :], mask=present, other=0.0)
        if k_ptr.dtype.element_ty == tl.int8:
            p *= scales_of(v_ptr, slot, seen, D, PITCH)[None, :]
        v = elements_as(v, q.dtype)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_ij
    out = acc / l_i[:, None]
    offset = item[:, None] * D + columns[None, :]
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=used[:, None])


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_pos: Tensor,
    sequence: Tensor,
    scale: float,
    window: int,
    ring: int,
    tiling: PromptTiling | None = None,
    last_visible: Tensor | None = None,
) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.sdpa_prompt`, [1, T, heads, D].

    `tiling` replaces the one that the layer's shape has, for comparisons.
    """
    _, rows, heads, head_dim = q.shape
    kv_heads = k.shape[0]
    k, v, of_head, of_cache, pitch = with_strides(k, v)
    tiles = tiling or choose_tiling(head_dim)
    group = heads // kv_heads
    rows_of_tile = tiles.row_tile // group
    out = q.new_empty(q.shape)
    programs = triton.cdiv(rows, rows_of_tile) * kv_heads * tiles.parts
    wrap_triton(sdpa_prompt_kernel)[(programs,)](
        q.contiguous(),
        k,
        v,
        input_pos.contiguous(),
        sequence.contiguous(),
        input_pos if last_visible is None else last_visible.contiguous(),
        out,
        rows,
        of_head,
        of_cache,
        SCALE=scale * LOG2_E,
        HEADS=heads,
        GROUP=group,
        D=head_dim,
        ENTRY=k.shape[-1],
        PITCH=pitch,
        VALUES=head_dim // tiles.parts,
        WINDOW=window,
        RING=ring,
        ROWS=rows_of_tile,
        ROW_TILE=tiles.row_tile,
        KEY_TILE=tiles.key_tile,
        AHEAD=last_visible is not None,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out
