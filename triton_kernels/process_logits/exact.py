"""Finds the exact thresholds among the candidates.

Importing this module needs triton. Products are not fused into sums.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.integers import (
    LOWEST,
    UNBOUNDED,
    end_of,
    ordered,
    weight,
)
from eagle_aot.triton_kernels.process_logits.search import (
    ABOVE,
    COUNT,
    GOAL,
    HIGH,
    LARGEST_VALUE,
    LOW,
    SPAN,
    SUMS,
    row_parameters,
)

TILE = 4096
OPTIONS = {"num_warps": 16, "enable_fp_fusion": False}


@triton.jit
def load_tile(
    source_ptr: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    largest: tl.tensor,
    lowest: tl.tensor,
    end: tl.tensor,
    TILE: tl.constexpr,
    IS_WEIGHED: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Load TILE logits; those whose order is in [lowest, end) are candidates.

    Returns whether each is a candidate, its order, and its count or weight, which is 0 for others.
    """
    at = start + tl.arange(0, TILE)
    value = tl.load(source_ptr + at, mask=at < count, other=float("-inf")) * scale
    order = ordered(value)
    between = (at < count) & (order >= lowest) & (order < end)
    if IS_WEIGHED:
        each = tl.where(between, weight(value, largest, SCALE_BITS, LOG2E, EXP2), 0)
    else:
        each = between.to(tl.int32)
    return between, order, each


@triton.jit
def threshold(
    source_ptr: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    largest: tl.tensor,
    lowest: tl.tensor,
    end: tl.tensor,
    above: tl.tensor,
    goal: tl.tensor,
    top_p: tl.tensor,
    TILE: tl.constexpr,
    IS_WEIGHED: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> tl.tensor:
    """Return the largest order in [lowest, end) whose sum reaches the goal, int32.

    If the goal is 0, it is the share `top_p` of the sum of all candidates. The first tile stays in
    registers; the others are read again for each bit.
    """
    between, order, each = load_tile(
        source_ptr, 0, count, scale, largest, lowest, end,
        TILE, IS_WEIGHED, SCALE_BITS, LOG2E, EXP2,
    )  # fmt: skip
    least, largest_order = tl.where(between, order, UNBOUNDED), tl.where(between, order, LOWEST)
    total = each
    for start in range(TILE, count, TILE):
        between, orders, weights = load_tile(
            source_ptr, start, count, scale, largest, lowest, end,
            TILE, IS_WEIGHED, SCALE_BITS, LOG2E, EXP2,
        )  # fmt: skip
        least = tl.minimum(least, tl.where(between, orders, UNBOUNDED))
        largest_order = tl.maximum(largest_order, tl.where(between, orders, LOWEST))
        total += weights
    if goal == 0:
        goal = tl.ceil(tl.sum(total, axis=0).to(tl.float64) * top_p).to(tl.int64)
    result = tl.min(least, axis=0).to(tl.int64)
    beyond = tl.max(largest_order, axis=0).to(tl.int64) + 1
    while beyond - result > 1:
        middle = result + ((beyond - result) >> 1)
        reached = tl.where(order >= middle.to(tl.int32), each, 0)
        for start in range(TILE, count, TILE):
            _, orders, weights = load_tile(
                source_ptr, start, count, scale, largest, lowest, end,
                TILE, IS_WEIGHED, SCALE_BITS, LOG2E, EXP2,
            )  # fmt: skip
            reached += tl.where(orders >= middle.to(tl.int32), weights, 0)
        is_enough = above + tl.sum(reached, axis=0) >= goal
        result = tl.where(is_enough, middle, result)
        beyond = tl.where(is_enough, beyond, middle)
    return result.to(tl.int32)


@triton.jit
def exact_kernel(
    x_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    spans_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    candidates_ptr: tl.tensor,
    thresholds_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    CHOICES: tl.constexpr,
    CAPACITY: tl.constexpr,
    TILE: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> None:
    """Find the int32 order of the least value that a row keeps; LOWEST keeps all."""
    row = tl.program_id(0)
    scale, _, top_p, cuts_top_k, cuts_top_p = row_parameters(
        row, scale_ptr, sequences_ptr, top_k_ptr, top_p_ptr, VOCAB
    )
    spans_ptr += row * SPAN
    sums_ptr += row * (SUMS + CHOICES)
    largest = tl.load(spans_ptr + LARGEST_VALUE)
    if not ((cuts_top_k | cuts_top_p) & (largest > float("-inf"))):
        tl.store(thresholds_ptr + row, LOWEST)
        return
    low = tl.load(spans_ptr + LOW)
    lowest = tl.where(low > float("-inf"), ordered(low), LOWEST)
    end = end_of(tl.load(spans_ptr + HIGH))
    goal, above = tl.load(sums_ptr + GOAL), tl.load(sums_ptr + ABOVE)
    source_ptr, count = candidates_ptr + row * CAPACITY, tl.load(sums_ptr + COUNT).to(tl.int32)
    if count > CAPACITY:
        source_ptr, count = x_ptr + row.to(tl.int64) * VOCAB, VOCAB
    if cuts_top_k & (low > float("-inf")):
        lowest = threshold(
            source_ptr, count, scale, largest, lowest, end, above, goal, top_p,
            TILE, False, SCALE_BITS, LOG2E, EXP2,
        )  # fmt: skip
    if cuts_top_p:
        if cuts_top_k:
            end, above, goal = UNBOUNDED, tl.zeros((), tl.int64), tl.zeros((), tl.int64)
        lowest = threshold(
            source_ptr, count, scale, largest, lowest, end, above, goal, top_p,
            TILE, True, SCALE_BITS, LOG2E, EXP2,
        )  # fmt: skip
    tl.store(thresholds_ptr + row, lowest)
