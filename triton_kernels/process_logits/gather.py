"""What of a row may be its threshold, put together.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.numbers import LARGEST, end_of, ordered
from eagle_aot.triton_kernels.process_logits.search import (
    COUNT,
    HIGH,
    LOW,
    SPAN,
    SUMS,
    asked,
)

CAPACITY = 16384
"""Candidates of a row. Where there are more, the row itself is read in their place."""
LANES = 1024
"""Columns of a block's logits, each of which one thread has to itself and counts up alone."""


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
    """A block of a row: its logits between the two numbers, or all that `top_k` may leave where
    `top_p` comes after it, in any order.

    `candidates` float32 [R, CAPACITY] are not scaled.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    scale, _, _, counted, weighed = asked(
        row, scale_ptr, sequences_ptr, top_k_ptr, top_p_ptr, VOCAB
    )
    if not (counted | weighed):
        return
    low, high = tl.load(spans_ptr + row * SPAN + LOW), tl.load(spans_ptr + row * SPAN + HIGH)
    low = tl.where(counted & weighed, tl.maximum(low, -LARGEST), low)
    high = tl.where(counted & weighed, float("inf"), high)
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
    number = tl.sum(in_lane, axis=0)
    if number == 0:
        return
    found_ptr = sums_ptr + row * (SUMS + CHOICES) + COUNT
    before = tl.atomic_add(found_ptr, number.to(tl.int64), sem="relaxed").to(tl.int32)
    lanes_before = before + tl.cumsum(in_lane, axis=0) - in_lane
    place = lanes_before[None, :] + tl.cumsum(count, axis=0) - 1
    tl.store(candidates_ptr + row * CAPACITY + place, x, mask=between & (place < CAPACITY))
