"""Logits as whole numbers: their order, and their weights.

Sums of whole numbers are exact in any order, so that a threshold does not depend on who adds up
what. Importing this module needs triton. No product is fused with a sum: weights have the bits of
the eager twin's.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)
"""Of finite float32."""
UNBOUNDED = tl.constexpr(0x7FFFFFFF)
"""Above the order of any number."""
LOWEST = tl.constexpr(-0x80000000)
"""Below it."""


@triton.jit
def ordered(x: tl.tensor) -> tl.tensor:
    """int32 that compare as float32 without NaN do; there is one zero."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def end_of(high: tl.tensor) -> tl.tensor:
    """The order, int32, that all numbers below `high` are below, all there are for infinity."""
    return tl.where(high == float("inf"), UNBOUNDED, ordered(high))


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
def octaves(x: tl.tensor) -> tl.tensor:
    """A whole number, float32, above the logarithm to base 2 of float64 x from 1 on."""
    exponent = (x.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    return exponent.to(tl.float32)
