"""Attention of rows on a GPU: the last chunk of each, its tail, whose slots are gathered.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.sdpa_splitk.steps import attend, keep


@triton.jit
def attend_tail(
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
    GROUP_TILE: tl.constexpr,
    D: tl.constexpr,
    TAIL: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """What the tail of one row contributes to the heads of one key/value head: its last chunk."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    row = program // KV_HEADS
    kv_head = program % KV_HEADS
    entry = tl.arange(0, TAIL)
    # Nothing here waits for anything else that is loaded.
    real = tl.load(positions_ptr + row) >= 0
    cache = tl.load(sequences_ptr + row // rows)
    slot = tl.load(tail_ptr + row * TAIL + entry).to(tl.int32)
    present = real & (slot >= 0)
    if WINDOW:
        present = present & (entry >= TAIL - WINDOW)
        slot = slot % RING
    d = tl.arange(0, D)
    head = tl.arange(0, GROUP_TILE)
    used = head < GROUP
    item = row * HEADS + kv_head * GROUP + head
    q_ptr += item.to(tl.int64)[:, None] * D + d[None, :]
    q = tl.load(q_ptr, mask=used[:, None], other=0.0)
    place = (kv_head * caches + cache) * slots * D + slot[:, None] * D + d[None, :]
    k = tl.load(k_ptr + place, mask=present[:, None], other=0.0)
    v = tl.load(v_ptr + place, mask=present[:, None], other=0.0)
    m_i = tl.full((GROUP_TILE,), float("-inf"), tl.float32)
    l_i = tl.zeros((GROUP_TILE,), tl.float32)
    acc = tl.zeros((GROUP_TILE, D), tl.float32)
    m_i, l_i, acc = attend(q, k, v, present[None, :], m_i, l_i, acc, SCALE)
    items = batch * rows * HEADS
    field = (SPLITS + 1) * items
    keep(partial_ptr, stats_ptr, SPLITS * items + item, field, real & used, m_i, l_i, acc, D)
