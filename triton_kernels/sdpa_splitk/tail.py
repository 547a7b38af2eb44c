"""Attention of rows on a GPU: the last chunk of each, its tail, whose slots are gathered.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.sdpa_splitk.steps import attend, keep, places_of, queries


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
    caches: tl.tensor,
    slots: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    TAIL: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
) -> None:
    """What the tails of ROWS rows contribute to them: the last chunk of each.

    The keys of all these tails are one list, of which a row sees its own TAIL. These are whole
    steps of the tensor cores, wherever in the list they are, so others add exactly nothing.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    kv_head = program % KV_HEADS
    row_tiles = tl.cdiv(rows, ROWS)
    sequence = program // KV_HEADS // row_tiles
    first_row = program // KV_HEADS % row_tiles * ROWS
    cache = tl.load(sequences_ptr + sequence)
    row, item, used = places_of(sequence, first_row, rows, kv_head, HEADS, GROUP, ROWS, ROW_TILE)
    q = queries(q_ptr, item, used, D)
    real = tl.load(positions_ptr + row, mask=used, other=-1) >= 0
    mine = tl.arange(0, ROW_TILE) // GROUP
    d = tl.arange(0, D)
    k_ptr += (kv_head * caches + cache) * slots * D
    v_ptr += (kv_head * caches + cache) * slots * D
    positions_ptr += sequence * rows + first_row
    tail_ptr += (sequence * rows + first_row) * TAIL
    entries = tl.minimum(rows - first_row, ROWS) * TAIL
    bound = entries if ROWS * TAIL > KEY_TILE else KEY_TILE  # which is no loop
    m_i = tl.full((ROW_TILE,), float("-inf"), tl.float32)
    l_i = tl.zeros((ROW_TILE,), tl.float32)
    acc = tl.zeros((ROW_TILE, D), tl.float32)
    for start in range(0, bound, KEY_TILE):
        entry = start + tl.arange(0, KEY_TILE)
        owner = entry // TAIL
        slot = tl.load(tail_ptr + entry, mask=entry < entries, other=-1).to(tl.int32)
        position = tl.load(positions_ptr + owner, mask=entry < entries, other=-1)
        present = (position >= 0) & (slot >= 0)
        if WINDOW:
            present = present & (entry % TAIL >= TAIL - WINDOW)
            slot = slot % RING
        place = slot[:, None] * D + d[None, :]
        k = tl.load(k_ptr + place, mask=present[:, None], other=0.0)
        v = tl.load(v_ptr + place, mask=present[:, None], other=0.0)
        visible = present[None, :] & (owner[None, :] == mine[:, None])
        m_i, l_i, acc = attend(q, k, v, visible, m_i, l_i, acc, SCALE)
    items = batch * rows * HEADS
    field = (SPLITS + 1) * items
    keep(partial_ptr, stats_ptr, SPLITS * items + item, field, real, m_i, l_i, acc, D)
