"""Logits as integers: their order, and their weights.

Sums of integers are exact in any order, so a threshold does not depend on which program adds what.
Importing this module needs triton. Products are not fused into sums, so weights have the same bits
as those of the eager reference.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)
"""The largest finite float32."""
UNBOUNDED = tl.constexpr(0x7FFFFFFF)
"""An order above that of any number."""
LOWEST = tl.constexpr(-0x80000000)
"""An order below that of any number."""


@triton.jit
def ordered(x: tl.tensor) -> tl.tensor:
    """Map float32 x [...], without NaN, to int32 in the same order; -0 and 0 are equal."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def end_of(high: tl.tensor) -> tl.tensor:
    """Return the int32 order above those of all numbers below `high`; infinity: above all."""
    return tl.where(high == float("inf"), UNBOUNDED, ordered(high))


@triton.jit
def weight(
    x: tl.tensor,
    largest: tl.tensor,
    SCALE_BITS: tl.constexpr,
    LOG2E: tl.constexpr,
    EXP2: tl.constexpr,
) -> tl.tensor:
    """Return exp(x - largest) * 2**SCALE_BITS as int64, in the shape of x, by a polynomial."""
    exponent = tl.maximum((x - largest) * LOG2E, -SCALE_BITS - 2.0)
    floor = tl.floor(exponent)
    rest = exponent - floor
    power = tl.full(x.shape, EXP2[len(EXP2) - 1], tl.float32)
    for n in tl.static_range(len(EXP2) - 1):
        power = power * rest + EXP2[len(EXP2) - 2 - n]
    bits = (floor.to(tl.int32) + (SCALE_BITS + 127)) << 23
    return (power * bits.to(tl.float32, bitcast=True)).to(tl.int64)


@triton.jit
def octaves(x: tl.tensor) -> tl.tensor:
    """Return an integer, as float32, above log2(x) of float64 x [...] >= 1."""
    exponent = (x.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    return exponent.to(tl.float32)
