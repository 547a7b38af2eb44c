"""What is known of a row whose threshold is looked for, at first and in between.

A threshold is the largest number such that what is no smaller reaches a goal: the `top_k` of a row,
each token counting as one, or the share `top_p` of its weights. Where a row asks for both, it is
the first that is looked for in all of the row, and the second among what the first leaves.

The row is summed up from each of `CHOICES` numbers on that lie evenly between two, and so again in
between the two of these that the threshold proves to lie between. Any numbers would lead to the
same threshold, these soon leave few logits. Importing this module needs triton. No product is fused
with a sum.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.numbers import LARGEST, octaves

CHOICES = 8

# Of a row's numbers, float32 [SPAN]: those that are summed up from lie evenly between LOW and LAST,
# but the first, which is LEAST; the threshold is below HIGH; LARGEST_VALUE is the row's.
LEAST, LOW, LAST, HIGH, LARGEST_VALUE = (tl.constexpr(n) for n in range(5))
SPAN = tl.constexpr(5)

# And of its whole numbers, int64 [SUMS + CHOICES]: what is to be reached, 0 for what is not known
# yet; what reaches HIGH; whether there is too much in between; how many candidates there are; how
# many blocks were summed up; and the sums.
GOAL, ABOVE, IS_WIDE, COUNT, ARRIVED, SUMS = (tl.constexpr(n) for n in range(6))

COUNTED_RANGE = tl.constexpr(64.0)
"""Of logits below the largest, where `top_k` is looked for at first."""


@triton.jit
def asked(
    row: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    VOCAB: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """A row's scale, top_k and top_p, and whether it is cut by one and by the other."""
    sequence, scale = tl.load(sequences_ptr + row), tl.load(scale_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + sequence), tl.load(top_p_ptr + sequence)
    return scale, top_k, top_p, (scale > 0) & (top_k < VOCAB), (scale > 0) & (top_p < 1)


@triton.jit
def bound(least: tl.tensor, low: tl.tensor, last: tl.tensor, share: tl.tensor) -> tl.tensor:
    """A number that is summed up from: `least`, which no other is below, for the share 0."""
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
    """A row's span, within which most thresholds lie.

    All tokens that are lower than the largest by log(VOCAB / (1 - top_p)) have less than 1 - top_p
    of the probability together.
    """
    row = tl.program_id(0)
    scale, top_k, top_p, counted, weighed = asked(
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
    depth = tl.where(counted, COUNTED_RANGE * scale, depth)
    spans_ptr += row * SPAN
    tl.store(spans_ptr + LEAST, least)
    tl.store(spans_ptr + LOW, tl.maximum(last - depth, least))
    tl.store(spans_ptr + LAST, last)
    tl.store(spans_ptr + HIGH, float("inf"))
    tl.store(spans_ptr + LARGEST_VALUE, largest)
    sums_ptr += row * (SUMS + CHOICES)
    tl.store(sums_ptr + GOAL, tl.where(counted, top_k, 0))
    tl.store(sums_ptr + ABOVE, 0)
    tl.store(sums_ptr + IS_WIDE, (counted | weighed) & (largest > float("-inf")))
    tl.store(sums_ptr + COUNT, 0)
    tl.store(sums_ptr + ARRIVED, 0)
    tl.store(sums_ptr + SUMS + tl.arange(0, CHOICES), tl.zeros((CHOICES,), tl.int64))


@triton.jit
def narrower(
    spans_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    top_p: tl.tensor,
    CHOICES: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """With all blocks of a row summed up, between which two numbers its threshold lies, the lower
    of them minus infinity where none reaches the goal, and what lies in between.

    Sums are zeros again for the next time.
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
    tl.debug_barrier()  # all threads have read what is written now
    tl.store(spans_ptr + LEAST, low)
    tl.store(spans_ptr + LOW, low)
    tl.store(spans_ptr + LAST, last)
    tl.store(spans_ptr + HIGH, high)
    tl.store(sums_ptr + GOAL, goal)
    tl.store(sums_ptr + ABOVE, above)
    tl.store(sums_ptr + ARRIVED, 0)
    tl.store(sums_ptr + SUMS + share, tl.zeros((CHOICES,), tl.int64))
    return low, last, within
