"""The thresholds of top_k and top_p, found by four bits a pass.

A pass takes sums of whole numbers, exact in any order, of what reaches each of 16 numbers. A block
of which nothing lies between two of them is not read again: its sums are those it had. Importing
this module needs triton. No product is fused with a sum: weights have the bits of the eager twin's.
"""

import triton
import triton.language as tl

BITS = 4
DIGITS = 32 // BITS
CHOICES = 1 << BITS
SUMS = CHOICES + 1
"""Of a block and a pass: what reaches each choice of a digit, and what reaches one more."""


@triton.jit
def ordered(x: tl.tensor) -> tl.tensor:
    """int32 that compare as float32 without NaN do; there is one zero."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def order_of(number: tl.tensor) -> tl.tensor:
    """What a search looks for, int64 from 0 to 2**32 - 1, in the order of `ordered`."""
    return (number - 0x80000000).to(tl.int32)


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
def largest_of(
    largest_ptr: tl.tensor, row: tl.tensor, BLOCKS: tl.constexpr, MOST_BLOCKS: tl.constexpr
) -> tl.tensor:
    """A row's largest logit, of those of its blocks."""
    block = tl.arange(0, MOST_BLOCKS)
    at = largest_ptr + row * BLOCKS + block
    return tl.max(tl.load(at, mask=block < BLOCKS, other=float("-inf")), axis=0)


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
    at = (((DIGIT - 1) * ROWS + row) * BLOCKS + block) * (CHOICES + 1) + choice
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
    at = (row * BLOCKS + block) * (CHOICES + 1)  # of the first digit, what reaches 0
    total = tl.sum(tl.load(sums_ptr + at, mask=block < BLOCKS, other=0), axis=0)
    return tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)


@triton.jit
def search_kernel(
    x_ptr: tl.tensor,
    largest_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
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
    DIGIT: tl.constexpr,
    IS_WEIGHED: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> None:
    """One pass of a block of a row: what top_k keeps is counted, and then what top_p keeps weighed.

    `prefixes` int64 [2, DIGITS, ROWS] and `sums` int64 [2, DIGITS, ROWS, BLOCKS, CHOICES + 1] are
    of both searches.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    sequence, scale = tl.load(sequences_ptr + row), tl.load(scale_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + sequence), tl.load(top_p_ptr + sequence)
    few = top_k < VOCAB
    if scale <= 0 or not (top_p < 1 if IS_WEIGHED else few):
        return
    least = tl.zeros((), tl.int64)
    goal = top_k
    if IS_WEIGHED:
        if few:
            least = reached(
                prefixes_ptr, sums_ptr, row, top_k, ROWS, BLOCKS, MOST_BLOCKS, DIGITS, BITS, CHOICES
            )
        prefixes_ptr += DIGITS * ROWS
        sums_ptr += DIGITS * ROWS * BLOCKS * (CHOICES + 1)
        if DIGIT:
            goal = share(sums_ptr, row, top_p, BLOCKS, MOST_BLOCKS, CHOICES)
    prefix = reached(
        prefixes_ptr, sums_ptr, row, goal, ROWS, BLOCKS, MOST_BLOCKS, DIGIT, BITS, CHOICES
    )
    if block == 0:
        tl.store(prefixes_ptr + DIGIT * ROWS + row, prefix)
    place = sums_ptr + ((DIGIT * ROWS + row) * BLOCKS + block) * (CHOICES + 1)
    above = tl.zeros((), tl.int64)
    between = above + 1
    if DIGIT:
        before = place - ROWS * BLOCKS * (CHOICES + 1)
        before += (prefix >> (32 - BITS * DIGIT)) & (CHOICES - 1)
        above = tl.load(before + 1)
        between = tl.load(before) - above
    tl.store(place + CHOICES, above)
    if between == 0:
        for choice in tl.static_range(CHOICES):
            tl.store(place + choice, above)
        return
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    at = row.to(tl.int64) * VOCAB + column
    value = tl.load(x_ptr + at, mask=inside, other=float("-inf")) * scale
    order = ordered(value)
    counted = inside & (order >= order_of(least))
    if IS_WEIGHED:
        largest = largest_of(largest_ptr, row, BLOCKS, MOST_BLOCKS) * scale
        each = tl.where(counted, weight(value, largest, SCALE_BITS, LOG2E, EXP2), 0)
    else:
        each = counted.to(tl.int32)
    for choice in tl.static_range(CHOICES):
        bound = order_of(prefix + (choice << (32 - BITS - BITS * DIGIT)))
        tl.store(place + choice, tl.sum(tl.where(order >= bound, each, 0), axis=0))
