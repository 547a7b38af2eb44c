"""top_k, top_p and min_p: logits below a row's thresholds become minus infinity.

A threshold is found by four bits a pass: sums of whole numbers, exact in any order, of what reaches
each of 16 numbers. Importing this module needs triton. No product is fused with a sum: weights have
the bits of the eager twin's.
"""

import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels.process_logits.penalise import BLOCK, OPTIONS

BITS = 4
DIGITS = 32 // BITS
SIZES = {"BITS": BITS, "DIGITS": DIGITS, "CHOICES": 1 << BITS, "BLOCK": BLOCK}


@triton.jit
def ordered(x: tl.tensor) -> tl.tensor:
    """int64 from 0 to 2**32 - 1 that compare as float32 without NaN do; there is one zero."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000


@triton.jit
def weight(
    x: tl.tensor,
    largest: tl.tensor,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> tl.tensor:
    """exp(x - largest) * 2**SCALE_BITS as a whole number, int64, by a polynomial in 2's powers."""
    below = tl.maximum((x - largest) * LOG2E, -SCALE_BITS - 2.0)
    floor = tl.floor(below)
    rest = below - floor
    power = tl.full(x.shape, EXP2[len(EXP2) - 1], tl.float32)
    for n in tl.static_range(len(EXP2) - 1):
        power = power * rest + EXP2[len(EXP2) - 2 - n]
    exponent = (floor.to(tl.int32) + (SCALE_BITS + 127)) << 23
    return (power * exponent.to(tl.float32, bitcast=True)).to(tl.int64)


@triton.jit
def reached(
    prefixes_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    row: tl.tensor,
    goal: tl.tensor,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,
    DIGIT: tl.constexpr,
    BITS: tl.constexpr,
    CHOICES: tl.constexpr,
) -> tl.tensor:
    """The largest number whose first DIGIT digits are all, and which what is kept reaches."""
    if DIGIT == 0:
        return tl.zeros((), tl.int64)
    block, choice = tl.arange(0, MOST_BLOCKS)[:, None], tl.arange(0, CHOICES)[None, :]
    at = (((DIGIT - 1) * ROWS + row) * BLOCKS + block) * CHOICES + choice
    sums = tl.sum(tl.load(sums_ptr + at, mask=block < BLOCKS, other=0), axis=0)
    digit = tl.sum((sums >= goal).to(tl.int64), axis=0) - 1
    return tl.load(prefixes_ptr + (DIGIT - 1) * ROWS + row) + (digit << (32 - BITS * DIGIT))


@triton.jit
def share(
    sums_ptr: tl.tensor,
    row: tl.tensor,
    top_p: tl.tensor,
    BLOCKS: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,
    CHOICES: tl.constexpr,
) -> tl.tensor:
    """How much of a row's weights has to be kept, int64."""
    block = tl.arange(0, MOST_BLOCKS)
    at = (row * BLOCKS + block) * CHOICES  # of the first digit, what reaches 0
    total = tl.sum(tl.load(sums_ptr + at, mask=block < BLOCKS, other=0), axis=0)
    return tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)


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
    PASS: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> None:
    """Passes of a block of a row: DIGITS that find what top_k keeps, as many for top_p, and one
    that writes. `prefixes` int64 [2, DIGITS, ROWS] and `sums` int64 [2, DIGITS, ROWS, BLOCKS,
    CHOICES] are of both searches."""
    row, block = tl.program_id(0), tl.program_id(1)
    sequence, scale = tl.load(sequences_ptr + row), tl.load(scale_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + sequence), tl.load(top_p_ptr + sequence)
    few, likely = (top_k < VOCAB) & (scale > 0), (top_p < 1) & (scale > 0)
    scale = tl.where(scale > 0, scale, 1.0)
    IS_WEIGHED: tl.constexpr = PASS >= DIGITS
    IS_LAST: tl.constexpr = PASS == 2 * DIGITS
    wanted = likely if IS_WEIGHED else few
    if IS_LAST or wanted:
        column = block * BLOCK + tl.arange(0, BLOCK)
        inside = column < VOCAB
        at = row.to(tl.int64) * VOCAB + column
        x = tl.load(x_ptr + at, mask=inside, other=float("-inf"))
        value = x * scale
        order = ordered(value)
        blocks = tl.arange(0, MOST_BLOCKS)
        of_blocks = largest_ptr + row * BLOCKS + blocks
        largest = tl.max(tl.load(of_blocks, mask=blocks < BLOCKS, other=float("-inf")), axis=0)
        largest *= scale
        least = tl.zeros((), tl.int64)
        if IS_WEIGHED and few:
            least = reached(
                prefixes_ptr, sums_ptr, row, top_k, ROWS, BLOCKS, MOST_BLOCKS, DIGITS, BITS, CHOICES
            )
        of_search = prefixes_ptr + (DIGITS * ROWS if IS_WEIGHED else 0)
        of_sums = sums_ptr + (DIGITS * ROWS * BLOCKS * CHOICES if IS_WEIGHED else 0)
        if IS_LAST:
            if likely:
                goal = share(of_sums, row, top_p, BLOCKS, MOST_BLOCKS, CHOICES)
                found = reached(
                    of_search, of_sums, row, goal, ROWS, BLOCKS, MOST_BLOCKS, DIGITS, BITS, CHOICES
                )
                least = tl.maximum(least, found)
            kept = (order >= least) & (value >= largest + tl.load(min_p_ptr + sequence))
            tl.store(x_ptr + at, tl.where(kept, x, float("-inf")), mask=inside)
        else:
            DIGIT: tl.constexpr = PASS % DIGITS
            goal = top_k
            if IS_WEIGHED and DIGIT:
                goal = share(of_sums, row, top_p, BLOCKS, MOST_BLOCKS, CHOICES)
            prefix = reached(
                of_search, of_sums, row, goal, ROWS, BLOCKS, MOST_BLOCKS, DIGIT, BITS, CHOICES
            )
            if block == 0:
                tl.store(of_search + DIGIT * ROWS + row, prefix)
            counted = inside & (order >= least)
            if IS_WEIGHED:
                each = tl.where(counted, weight(value, largest, SCALE_BITS, LOG2E, EXP2), 0)
            else:
                each = counted.to(tl.int64)
            place = of_sums + ((DIGIT * ROWS + row) * BLOCKS + block) * CHOICES
            for choice in tl.static_range(CHOICES):
                bound = prefix + (choice << (32 - BITS - BITS * DIGIT))
                tl.store(place + choice, tl.sum(tl.where(order >= bound, each, 0), axis=0))


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
    sums = top_k.new_empty(2, DIGITS, rows, blocks, 1 << BITS)
    for step in range(2 * DIGITS + 1):
        cut_kernel[(rows, blocks)](
            *(logits, largest, scale.contiguous(), sequences.contiguous(), top_k, top_p, min_p),
            *(prefixes, sums),
            ROWS=rows,
            VOCAB=vocab,
            BLOCKS=blocks,
            MOST_BLOCKS=triton.next_power_of_2(blocks),
            PASS=step,
            SCALE_BITS=scale_bits,
            LOG2E=log2e,
            EXP2=exp2,
            **SIZES,
            **OPTIONS,
        )
    return logits
