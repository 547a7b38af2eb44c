"""The search for the threshold of a row: its state, its start and its steps.

A threshold is the largest number for which the logits that are not smaller reach a goal: `top_k`,
with each token counting as one, or the share `top_p` of all weights. If a row has both, `top_k` is
searched in the whole row and `top_p` among the tokens that `top_k` keeps.

A step sums the row from each of `CHOICES` evenly spaced bounds on, and the next step does the same
between the two bounds that enclose the threshold. Any bounds lead to the same threshold; these soon
leave few logits. Importing this module needs triton. Products are not fused into sums.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.integers import LARGEST, octaves

CHOICES = 8

# Indices of a row's numbers, float32 [SPAN]: bounds are evenly spaced between LOW and LAST, except
# the first one, which is LEAST; the threshold is below HIGH; LARGEST_VALUE is the row's maximum.
LEAST, LOW, LAST, HIGH, LARGEST_VALUE = (tl.constexpr(n) for n in range(5))
SPAN = tl.constexpr(5)

# Indices of a row's integers, int64 [SUMS + CHOICES]: the goal, 0 if it is not known yet; the sum
# from HIGH on; whether the span holds too many logits; the number of candidates; the number of
# blocks that have been added; and the sums.
GOAL, ABOVE, IS_WIDE, COUNT, ARRIVED, SUMS = (tl.constexpr(n) for n in range(6))

COUNTED_RANGE = tl.constexpr(64.0)
"""The distance below the maximum in which `top_k` is searched first."""


@triton.jit
def row_parameters(
    row: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    VOCAB: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Return a row's scale, top_k and top_p, and whether it is cut by top_k and by top_p."""
    sequence, scale = tl.load(sequences_ptr + row), tl.load(scale_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + sequence), tl.load(top_p_ptr + sequence)
    return scale, top_k, top_p, (scale > 0) & (top_k < VOCAB), (scale > 0) & (top_p < 1)


@triton.jit
def bound(least: tl.tensor, low: tl.tensor, last: tl.tensor, share: tl.tensor) -> tl.tensor:
    """Return the bound for a share of the span; for share 0 it is `least`, the smallest one."""
    return tl.where(share == 0, least, low + (last - low) * share)


@triton.jit
def begin_kernel(
    extremes_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    spans_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,
    CHOICES: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
) -> None:
    """Set the first span of a row, which contains most thresholds.

    All tokens that are below the maximum by log(VOCAB / (1 - top_p)) or more have a total
    probability of less than 1 - top_p.
    """
    row = tl.program_id(0)
    scale, top_k, top_p, cuts_top_k, cuts_top_p = row_parameters(
        row, scale_ptr, sequences_ptr, top_k_ptr, top_p_ptr, VOCAB
    )
    factor = tl.where(scale > 0, scale, 1.0)
    block = tl.arange(0, MOST_BLOCKS)
    at = extremes_ptr + row * 2 * BLOCKS + block
    largest = tl.max(tl.load(at, mask=block < BLOCKS, other=float("-inf")), axis=0) * factor
    least = tl.min(tl.load(at + BLOCKS, mask=block < BLOCKS, other=float("inf")), axis=0) * factor
    last = tl.minimum(largest, LARGEST)
    least = tl.minimum(tl.maximum(least, -LARGEST), last)
    depth = tl.minimum(octaves(VOCAB / tl.maximum(1 - top_p, 1e-30)), SCALE_BITS + 2.0) / LOG2E
    depth = tl.where(cuts_top_k, COUNTED_RANGE * scale, depth)
    spans_ptr += row * SPAN
    tl.store(spans_ptr + LEAST, least)
    tl.store(spans_ptr + LOW, tl.maximum(last - depth, least))
    tl.store(spans_ptr + LAST, last)
    tl.store(spans_ptr + HIGH, float("inf"))
    tl.store(spans_ptr + LARGEST_VALUE, largest)
    sums_ptr += row * (SUMS + CHOICES)
    tl.store(sums_ptr + GOAL, tl.where(cuts_top_k, top_k, 0))
    tl.store(sums_ptr + ABOVE, 0)
    tl.store(sums_ptr + IS_WIDE, (cuts_top_k | cuts_top_p) & (largest > float("-inf")))
    tl.store(sums_ptr + COUNT, 0)
    tl.store(sums_ptr + ARRIVED, 0)
    tl.store(sums_ptr + SUMS + tl.arange(0, CHOICES), tl.zeros((CHOICES,), tl.int64))


@triton.jit
def narrower(
    spans_ptr: tl.tensor, sums_ptr: tl.tensor, top_p: tl.tensor, CHOICES: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """Narrow a row's span, after all of its blocks have been added, and reset the sums.

    Returns the two bounds that enclose the threshold and the sum between them. The lower bound is
    minus infinity if no sum reaches the goal.
    """
    share = tl.arange(0, CHOICES)
    sums = tl.load(sums_ptr + SUMS + share)
    goal = tl.load(sums_ptr + GOAL)
    if goal == 0:
        total = tl.max(sums, axis=0)
        goal = tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)
    last, high = tl.load(spans_ptr + LAST), tl.load(spans_ptr + HIGH)
    least, low = tl.load(spans_ptr + LEAST), tl.load(spans_ptr + LOW)
    bounds = bound(least, low, last, share.to(tl.float32) / CHOICES)
    above = tl.maximum(tl.load(sums_ptr + ABOVE), tl.max(tl.where(sums < goal, sums, 0), axis=0))
    within = tl.min(tl.where(sums < goal, 1 << 62, sums), axis=0) - above
    low = tl.max(tl.where(sums < goal, float("-inf"), bounds), axis=0)
    high = tl.minimum(high, tl.min(tl.where(sums < goal, bounds, float("inf")), axis=0))
    last = tl.minimum(last, high)
    tl.debug_barrier()  # all threads have read before any writes
    tl.store(spans_ptr + LEAST, low)
    tl.store(spans_ptr + LOW, low)
    tl.store(spans_ptr + LAST, last)
    tl.store(spans_ptr + HIGH, high)
    tl.store(sums_ptr + GOAL, goal)
    tl.store(sums_ptr + ABOVE, above)
    tl.store(sums_ptr + ARRIVED, 0)
    tl.store(sums_ptr + SUMS + share, tl.zeros((CHOICES,), tl.int64))
    return low, last, within
