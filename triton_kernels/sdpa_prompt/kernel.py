"""Attention of a prompt's rows on a GPU: a Triton kernel that reads only what rows see.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.

A program takes all heads of a key head for a tile of rows, all columns of the values or a part of
them, and walks the keys that these see in the
order of positions, in tiles that begin at multiples of their length. A key that a row may not see
adds exactly nothing to it, and every tile is added by the same arithmetic, whether some of its keys
are hidden from some rows or not. So a row's bits depend on its position and its visible keys alone.
"""

import math

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.sdpa_prompt.tiling import PromptTiling, choose_tiling

LOG2_E = math.log2(math.e)


@triton.jit
def attend_keys(
    q: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    position: tl.tensor,
    bound: tl.tensor,
    least: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    m_i: tl.tensor,
    l_i: tl.tensor,
    acc: tl.tensor,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    VALUES: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    KEY_TILE: tl.constexpr,
    HIDDEN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Softmax over the tiles of keys from `start` to `stop`: running maximum, sum and output.

    Keys are D wide; of values the VALUES columns that begin at `v_ptr`.
    With HIDDEN some keys are hidden from rows at `position` [rows]: those behind it, and those a
    WINDOW before it. Keys above `bound` and below `least` are nobody's, and not read. The maximum
    is of scores before SCALE, which is multiplied in one operation with taking it off: where
    keys are hidden the compiler could not fuse the two by itself, and elsewhere would.
    """
    d, column = tl.arange(0, D), tl.arange(0, VALUES)
    for tile in range(start, stop, KEY_TILE):
        key = tile + tl.arange(0, KEY_TILE)
        slot = key % RING if WINDOW else key
        place = slot[:, None] * D + d[None, :]
        of_values = slot[:, None] * D + column[None, :]
        if HIDDEN:
            # What no row sees may be anything, NaN included.
            present = ((key <= bound) & (key >= least))[:, None]
            k = tl.load(k_ptr + place, mask=present, other=0.0)
        else:
            k = tl.load(k_ptr + place)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if HIDDEN:
            visible = key[None, :] <= position[:, None]
            if WINDOW:
                visible = visible & (key[None, :] > position[:, None] - WINDOW)
            score = tl.where(visible, score, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(score, 1))
        # Of a row that has seen no key yet, minus infinity less itself would be NaN.
        base = tl.where(m_ij == float("-inf"), 0.0, m_ij) * SCALE
        alpha = tl.exp2(tl.fma(m_i, SCALE, -base))
        p = tl.exp2(tl.fma(score, SCALE, -base[:, None]))
        l_i = tl.fma(l_i, alpha, tl.sum(p, 1))
        if HIDDEN:
            v = tl.load(v_ptr + of_values, mask=present, other=0.0)
        else:
            v = tl.load(v_ptr + of_values)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_ij
    return m_i, l_i, acc


@triton.jit(do_not_specialize=["rows", "caches", "slots"])
def sdpa_prompt_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    input_pos_ptr: tl.tensor,
    sequence_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    caches: tl.tensor,
    slots: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    VALUES: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
) -> None:
    """ROWS rows of all heads of a key head: q [rows, HEADS, D] -> out, the same.

    k and v [HEADS / GROUP, caches, slots, D], of whose columns of values a program takes VALUES.
    Programs of one head are neighbours, which find its keys in L2; those of the last rows, which
    see most, come first.
    """
    PARTS: tl.constexpr = D // VALUES
    rows = rows.to(tl.int32)  # a size without a known bound comes as 64 bits
    row_tiles = tl.cdiv(rows, ROWS)
    program = tl.program_id(0) // PARTS
    first_column = tl.program_id(0) % PARTS * VALUES
    kv_head = program // row_tiles
    first_row = (row_tiles - 1 - program % row_tiles) * ROWS
    tile_row = tl.arange(0, ROW_TILE)
    row = first_row + tile_row // GROUP
    used = (tile_row < ROWS * GROUP) & (row < rows)
    text = tl.load(input_pos_ptr).to(tl.int32)
    cache = tl.load(sequence_ptr)
    position = text + row
    low = text + first_row
    high = text + tl.minimum(first_row + ROWS, rows) - 1
    d, column = tl.arange(0, D), first_column + tl.arange(0, VALUES)
    item = row * HEADS + kv_head * GROUP + tile_row % GROUP  # 32 bits reach 131,072 rows of 16,384
    q = tl.load(q_ptr + item[:, None] * D + d[None, :], mask=used[:, None], other=0.0)
    k_ptr += (kv_head * caches + cache) * slots * D
    v_ptr += (kv_head * caches + cache) * slots * D + first_column
    m_i = tl.full((ROW_TILE,), float("-inf"), tl.float32)
    l_i = tl.zeros((ROW_TILE,), tl.float32)
    acc = tl.zeros((ROW_TILE, VALUES), tl.float32)
    least = 0
    begin = 0
    if WINDOW:
        # Keys that leave the window of the tile's first rows, but not of its last ones.
        least = tl.maximum(low - WINDOW + 1, 0)
        begin = tl.maximum(high - WINDOW + KEY_TILE, 0) // KEY_TILE * KEY_TILE
        m_i, l_i, acc = attend_keys(
            q, k_ptr, v_ptr, position, high, least, least // KEY_TILE * KEY_TILE,
            tl.minimum(begin, high + 1), m_i, l_i, acc, SCALE, D, VALUES, WINDOW, RING, KEY_TILE, True,
        )  # fmt: skip
    whole = (low + 1) // KEY_TILE * KEY_TILE
    m_i, l_i, acc = attend_keys(
        q, k_ptr, v_ptr, position, high, least, begin,
        whole, m_i, l_i, acc, SCALE, D, VALUES, WINDOW, RING, KEY_TILE, False,
    )  # fmt: skip
    m_i, l_i, acc = attend_keys(
        q, k_ptr, v_ptr, position, high, least, tl.maximum(begin, whole),
        high + 1, m_i, l_i, acc, SCALE, D, VALUES, WINDOW, RING, KEY_TILE, True,
    )  # fmt: skip
    out = acc / l_i[:, None]
    place = item[:, None] * D + column[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=used[:, None])


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
) -> Tensor:
    """Attention as a call of the kernel: arguments and result as for `op.sdpa_prompt`.

    `tiling` is for comparisons: it replaces the one that the layer's shape is given.
    """
    _, rows, heads, head_dim = q.shape
    kv_heads, caches, slots, _ = k.shape
    tiles = tiling or choose_tiling(head_dim)
    group = heads // kv_heads
    rows_of_tile = tiles.row_tile // group
    out = q.new_empty(q.shape)
    programs = triton.cdiv(rows, rows_of_tile) * kv_heads * tiles.parts
    wrap_triton(sdpa_prompt_kernel)[(programs,)](
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        input_pos.contiguous(),
        sequence.contiguous(),
        out,
        rows,
        caches,
        slots,
        SCALE=scale * LOG2_E,
        HEADS=heads,
        GROUP=group,
        D=head_dim,
        VALUES=head_dim // tiles.parts,
        WINDOW=window,
        RING=ring,
        ROWS=rows_of_tile,
        ROW_TILE=tiles.row_tile,
        KEY_TILE=tiles.key_tile,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out
