"""A step towards thresholds: rows summed up from each of a few numbers on.

Importing this module needs triton. No product is fused with a sum.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.numbers import weight
from eagle_aot.triton_kernels.process_logits.search import (
    ARRIVED,
    IS_WIDE,
    LARGEST_VALUE,
    LAST,
    LEAST,
    LOW,
    SPAN,
    SUMS,
    asked,
    bound,
    narrower,
)

OPTIONS = {"num_warps": 4, "maxnreg": 128, "enable_fp_fusion": False}


@triton.jit
def narrow_kernel(
    x_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    spans_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOICES: tl.constexpr,
    FEW: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> None:
    """A block of a row: how many of its logits reach each number, or what these weigh together.

    The last block of a row to come finds where its threshold lies. A row with no more than about
    FEW logits there is done.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    spans_ptr += row * SPAN
    sums_ptr += row * (SUMS + CHOICES)
    if tl.load(sums_ptr + IS_WIDE) == 0:
        return
    scale, _, top_p, counted, _ = asked(row, scale_ptr, sequences_ptr, top_k_ptr, top_p_ptr, VOCAB)
    least, low = tl.load(spans_ptr + LEAST), tl.load(spans_ptr + LOW)
    last, largest = tl.load(spans_ptr + LAST), tl.load(spans_ptr + LARGEST_VALUE)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * VOCAB + column, mask=column < VOCAB, other=float("-inf"))
    value = x * scale
    if counted:
        for choice in tl.static_range(CHOICES):
            reached = value >= bound(least, low, last, choice / CHOICES)
            number = tl.sum(reached.to(tl.int32), axis=0).to(tl.int64)
            tl.atomic_add(sums_ptr + SUMS + choice, number, sem="relaxed")
    else:
        each = weight(value, largest, SCALE_BITS, LOG2E, EXP2)
        for choice in tl.static_range(CHOICES):
            reached = value >= bound(least, low, last, choice / CHOICES)
            together = tl.sum(tl.where(reached, each, 0), axis=0)
            tl.atomic_add(sums_ptr + SUMS + choice, together, sem="relaxed")
    tl.debug_barrier()  # before the sums are said to be there
    if tl.atomic_add(sums_ptr + ARRIVED, 1, sem="acq_rel") == BLOCKS - 1:
        low, last, within = narrower(spans_ptr, sums_ptr, top_p, CHOICES)
        # Of those in between, most are light: the mean is taken for twice the least.
        mean = tl.where(counted, 1, 2 * weight(low, largest, SCALE_BITS, LOG2E, EXP2))
        is_wide = (low > float("-inf")) & (low < last) & (within > FEW * mean)
        tl.store(sums_ptr + IS_WIDE, is_wide.to(tl.int64))
