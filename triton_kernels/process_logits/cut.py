"""top_k, top_p and min_p: logits below a row's thresholds become minus infinity.

Importing this module needs triton.
"""

import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels.process_logits.penalise import BLOCK, OPTIONS
from eagle_aot.triton_kernels.process_logits.search import (
    BITS,
    CHOICES,
    DIGITS,
    SUMS,
    largest_of,
    order_of,
    ordered,
    reached,
    search_kernel,
    share,
)

SIZES = {"BITS": BITS, "DIGITS": DIGITS, "CHOICES": CHOICES, "BLOCK": BLOCK}


@triton.jit
def cut_kernel(
    x_ptr: tl.tensor,
    largest_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    min_p_ptr: tl.tensor,
    prefixes_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    ROWS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    DIGITS: tl.constexpr,
    CHOICES: tl.constexpr,
) -> None:
    """A block of a row, once both of its thresholds are found."""
    row, block = tl.program_id(0), tl.program_id(1)
    sequence, scale = tl.load(sequences_ptr + row), tl.load(scale_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + sequence), tl.load(top_p_ptr + sequence)
    least = tl.zeros((), tl.int64)
    if scale > 0:
        if top_k < VOCAB:
            least = reached(
                prefixes_ptr, sums_ptr, row, top_k, ROWS, BLOCKS, MOST_BLOCKS, DIGITS, BITS, CHOICES
            )
        if top_p < 1:
            prefixes_ptr += DIGITS * ROWS
            sums_ptr += DIGITS * ROWS * BLOCKS * (CHOICES + 1)
            goal = share(sums_ptr, row, top_p, BLOCKS, MOST_BLOCKS, CHOICES)
            found = reached(
                prefixes_ptr, sums_ptr, row, goal, ROWS, BLOCKS, MOST_BLOCKS, DIGITS, BITS, CHOICES
            )
            least = tl.maximum(least, found)
    scale = tl.where(scale > 0, scale, 1.0)
    largest = largest_of(largest_ptr, row, BLOCKS, MOST_BLOCKS) * scale
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    at = row.to(tl.int64) * VOCAB + column
    x = tl.load(x_ptr + at, mask=inside, other=float("-inf"))
    value = x * scale
    kept = (ordered(value) >= order_of(least)) & (value >= largest + tl.load(min_p_ptr + sequence))
    tl.store(x_ptr + at, tl.where(kept, x, float("-inf")), mask=inside)


def launch(
    logits: Tensor,
    largest: Tensor,
    scale: Tensor,
    sequences: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    scale_bits: int,
    log2e: float,
    exp2: tuple[float, ...],
) -> Tensor:
    """logits float32 [R, V] and the largest of their blocks, as `penalise.launch` gives them, times
    `scale` float32 [R] -> logits with minus infinity for what is not kept, in their own memory.

    Of S sequences: `top_k` int64 [S], V for all; `top_p` float64 [S], 1 for all; `min_p` float32
    [S], its logarithm. The others are the twin's constants of weights.
    """
    rows, vocab = logits.shape
    blocks = largest.shape[1]
    prefixes = top_k.new_empty(2, DIGITS, rows)
    sums = top_k.new_empty(2, DIGITS, rows, blocks, SUMS)
    given = (logits, largest, scale.contiguous(), sequences.contiguous(), top_k, top_p)
    shape = {"ROWS": rows, "VOCAB": vocab, "BLOCKS": blocks, **SIZES, **OPTIONS}
    shape |= {"MOST_BLOCKS": triton.next_power_of_2(blocks)}
    for step in range(2 * DIGITS):
        search_kernel[(rows, blocks)](
            *(*given, prefixes, sums),
            DIGIT=step % DIGITS,
            IS_WEIGHED=step >= DIGITS,
            SCALE_BITS=scale_bits,
            LOG2E=log2e,
            EXP2=exp2,
            **shape,
        )
    cut_kernel[(rows, blocks)](*given, min_p, prefixes, sums, **shape)
    return logits
