"""A narrowing step towards thresholds: sums of a row from each of a few bounds on.

Importing this module needs triton. Products are not fused into sums.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels.process_logits.integers import weight
from eagle_aot.triton_kernels.process_logits.search import (
    ARRIVED,
    IS_WIDE,
    LARGEST_VALUE,
    LAST,
    LEAST,
    LOW,
    SPAN,
    SUMS,
    bound,
    narrower,
    row_parameters,
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
    """Add up how many logits of a block reach each bound, or the weights of these.

    The block of a row that comes last finds the new span of its threshold. A row with no more than
    about FEW logits in its span is done.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    spans_ptr += row * SPAN
    sums_ptr += row * (SUMS + CHOICES)
    if tl.load(sums_ptr + IS_WIDE) == 0:
        return
    scale, _, top_p, cuts_top_k, _ = row_parameters(
        row, scale_ptr, sequences_ptr, top_k_ptr, top_p_ptr, VOCAB
    )
    least, low = tl.load(spans_ptr + LEAST), tl.load(spans_ptr + LOW)
    last, largest = tl.load(spans_ptr + LAST), tl.load(spans_ptr + LARGEST_VALUE)
    column = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * VOCAB + column, mask=column < VOCAB, other=float("-inf"))
    value = x * scale
    if cuts_top_k:
        for choice in tl.static_range(CHOICES):
            reached = value >= bound(least, low, last, choice / CHOICES)
            count = tl.sum(reached.to(tl.int32), axis=0).to(tl.int64)
            tl.atomic_add(sums_ptr + SUMS + choice, count, sem="relaxed")
    else:
        each = weight(value, largest, SCALE_BITS, LOG2E, EXP2)
        for choice in tl.static_range(CHOICES):
            reached = value >= bound(least, low, last, choice / CHOICES)
            total = tl.sum(tl.where(reached, each, 0), axis=0)
            tl.atomic_add(sums_ptr + SUMS + choice, total, sem="relaxed")
    tl.debug_barrier()  # all sums are added before this block counts as arrived
    if tl.atomic_add(sums_ptr + ARRIVED, 1, sem="acq_rel") == BLOCKS - 1:
        low, last, within = narrower(spans_ptr, sums_ptr, top_p, CHOICES)
        # Most weights in the span are small: their mean is estimated as twice the least.
        mean = tl.where(cuts_top_k, 1, 2 * weight(low, largest, SCALE_BITS, LOG2E, EXP2))
        is_wide = (low > float("-inf")) & (low < last) & (within > FEW * mean)
        tl.store(sums_ptr + IS_WIDE, is_wide.to(tl.int64))
