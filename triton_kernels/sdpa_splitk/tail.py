"""Attention of rows on a GPU: the last chunk of each row, its tail, whose slots are gathered.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.sdpa_splitk.steps import (
    attend,
    queries,
    store_partial,
    sums,
    tile_items,
)


@triton.jit
def attend_tails(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    tail_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    program: tl.tensor,
    batch: tl.tensor,
    rows: tl.tensor,
    of_head: tl.tensor,
    of_cache: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    PITCH: tl.constexpr,
    TAIL: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    PAIRED: tl.constexpr,
) -> None:
    """Compute what the tails of ROWS rows add to them: the last chunk of each row.

    The keys of all these tails form one list, in which a row sees its own TAIL keys. These are
    whole steps of the tensor cores at any place in the list, so other keys add exactly 0.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    kv_head = program % KV_HEADS
    row_tiles = tl.cdiv(rows, ROWS)
    sequence = program // KV_HEADS // row_tiles
    first_row = program // KV_HEADS % row_tiles * ROWS
    cache = tl.load(sequences_ptr + sequence)
    row, item, used = tile_items(sequence, first_row, rows, kv_head, HEADS, GROUP, ROWS, ROW_TILE)
    q, q_odd = queries(q_ptr, item, used, D, PAIRED)
    is_row = tl.load(positions_ptr + row, mask=used, other=-1) >= 0
    row_of_query = tl.arange(0, ROW_TILE) // GROUP
    first_entry = (kv_head.to(tl.int64) * of_head + cache * of_cache) * ENTRY
    k_ptr += first_entry
    v_ptr += first_entry
    positions_ptr += sequence * rows + first_row
    tail_ptr += (sequence * rows + first_row) * TAIL
    entries = tl.minimum(rows - first_row, ROWS) * TAIL
    bound = entries if ROWS * TAIL > KEY_TILE else KEY_TILE  # a single iteration
    m_i, l_i, acc, acc_odd = sums(ROW_TILE, D, PAIRED)
    for start in range(0, bound, KEY_TILE):
        entry = start + tl.arange(0, KEY_TILE)
        owner = entry // TAIL
        slot = tl.load(tail_ptr + entry, mask=entry < entries, other=-1).to(tl.int32)
        position = tl.load(positions_ptr + owner, mask=entry < entries, other=-1)
        present = (position >= 0) & (slot >= 0)
        if WINDOW:
            present = present & (entry % TAIL >= TAIL - WINDOW)
            slot = slot % RING
        visible = present[None, :] & (owner[None, :] == row_of_query[:, None])
        m_i, l_i, acc, acc_odd = attend(
            q, q_odd, k_ptr, v_ptr, slot, present, visible, m_i, l_i, acc, acc_odd, SCALE, D, PITCH,
            PAIRED,
        )  # fmt: skip
    items = batch * rows * HEADS
    field = (SPLITS + 1) * items
    store_partial(
        partial_ptr, stats_ptr, SPLITS * items + item, field, is_row, m_i, l_i, acc, acc_odd, D,
        PAIRED,
    )  # fmt: skip
