"""Collects the logits of a row that may be its threshold.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.integers import LARGEST, end_of, ordered
from eagle_aot.triton_kernels.process_logits.search import (
    COUNT,
    HIGH,
    LOW,
    SPAN,
    SUMS,
    row_parameters,
)

CAPACITY = 16384
"""Maximum candidates of a row; if there are more, the row itself is read instead."""
LANES = 1024
"""Columns of a block as a matrix; each column belongs to one thread, which counts it alone."""


@triton.jit
def gather_kernel(
    x_ptr: tl.tensor,
    extremes_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    spans_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    candidates_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    CHOICES: tl.constexpr,
    CAPACITY: tl.constexpr,
) -> None:
    """Collect the candidates of a block of a row in any order.

    These are the logits in the span of the row, or all that `top_k` may keep if `top_p` follows.
    `candidates` float32 [R, CAPACITY] are not scaled.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    scale, _, _, cuts_top_k, cuts_top_p = row_parameters(
        row, scale_ptr, sequences_ptr, top_k_ptr, top_p_ptr, VOCAB
    )
    if not (cuts_top_k | cuts_top_p):
        return
    low, high = tl.load(spans_ptr + row * SPAN + LOW), tl.load(spans_ptr + row * SPAN + HIGH)
    low = tl.where(cuts_top_k & cuts_top_p, tl.maximum(low, -LARGEST), low)
    high = tl.where(cuts_top_k & cuts_top_p, float("inf"), high)
    largest = tl.load(extremes_ptr + row * 2 * BLOCKS + block) * scale
    if (low == float("-inf")) | (largest < low):
        return
    lane = tl.arange(0, LANES)
    column = block * BLOCK + tl.arange(0, BLOCK // LANES)[:, None] * LANES + lane[None, :]
    at = row.to(tl.int64) * VOCAB + column
    x = tl.load(x_ptr + at, mask=column < VOCAB, other=float("-inf"))
    order = ordered(x * scale)
    between = (order >= ordered(low)) & (order < end_of(high))
    count = between.to(tl.int32)
    in_lane = tl.sum(count, axis=0)
    total = tl.sum(in_lane, axis=0)
    if total == 0:
        return
    count_ptr = sums_ptr + row * (SUMS + CHOICES) + COUNT
    first = tl.atomic_add(count_ptr, total.to(tl.int64), sem="relaxed").to(tl.int32)
    lane_first = first + tl.cumsum(in_lane, axis=0) - in_lane
    index = lane_first[None, :] + tl.cumsum(count, axis=0) - 1
    tl.store(candidates_ptr + row * CAPACITY + index, x, mask=between & (index < CAPACITY))
