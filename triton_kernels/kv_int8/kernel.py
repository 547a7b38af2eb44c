"""Reads and writes INT8 entries in kernels. Importing this module needs triton."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LARGEST = tl.constexpr(127.0)
TINY = tl.constexpr(2.0**-126)


PAIR = (
    "{ .reg .b32 pair, bits, sign, minus; "
    "shr.u32 pair, $1, SHIFT; "
    "and.b32 bits, pair, 0x007f007f; or.b32 bits, bits, 0x43004300; "
    "and.b32 sign, pair, 0x00800080; or.b32 sign, sign, 0x43004300; "
    "mov.b32 minus, 0xbf80bf80; fma.rn.bf16x2 $0, sign, minus, bits; }"
)
"""One byte each of two pairs of elements as bfloat16. Below the sign are 7 bits, as many as a
mantissa has: with the exponent of 128 they are 128 to 255, and 128 less, or 256, the element."""

LOW = tl.constexpr(PAIR.replace("SHIFT", "0"))
HIGH = tl.constexpr(PAIR.replace("SHIFT", "8"))


@triton.jit
def split_pairs(pairs: tl.tensor, DTYPE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Convert pairs of elements int16 [N, D / 2] to even and odd ones, as operands of products.

    A GPU's copies to operands move 16 bits or more.
    """
    if tl.bfloat16 == DTYPE and not INTERPRETED:
        low = tl.inline_asm_elementwise(
            LOW, "=r,r", [pairs], dtype=tl.bfloat16, is_pure=True, pack=2
        )
        high = tl.inline_asm_elementwise(
            HIGH, "=r,r", [pairs], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        low = (((pairs & 255) ^ 128) - 128).to(tl.float32).to(DTYPE)
        high = (pairs >> 8).to(tl.float32).to(DTYPE)
    return low, high


@triton.jit
def load_pairs(
    entries_ptr: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
) -> tl.tensor:
    """Load pairs of elements of the entries at `slot` [N]: int16 [N, D / 2]."""
    pairs_ptr = entries_ptr.to(tl.pointer_type(tl.int16)) + slot[:, None] * (ENTRY // 2)
    return tl.load(pairs_ptr + tl.arange(0, D // 2)[None, :], mask=present[:, None], other=0)


@triton.jit
def elements_as(entries: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """Convert elements of entries to operands of a product; only those of INT8 entries change."""
    # By way of float32, as GPUs do it: Triton's interpreter knows no other.
    return entries.to(tl.float32).to(DTYPE) if entries.dtype == tl.int8 else entries


@triton.jit
def scales_of(
    entries_ptr: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
) -> tl.tensor:
    """Load the scales of the entries at `slot` [N]: float32 [N], 0 where there is none.

    An entry is ENTRY bytes, and its elements are the first D.
    """
    scale_ptr = (entries_ptr + slot * ENTRY + D).to(tl.pointer_type(tl.float32))
    return tl.load(scale_ptr, mask=present, other=0.0)


@triton.jit
def store_quantized(
    cache_ptr: tl.tensor,
    slot: tl.tensor,
    is_row: tl.tensor,
    x: tl.tensor,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
) -> None:
    """Store heads x float32 [TILE, D] at `slot` [TILE, 1] of one head's cache, as
    `quantize_entries` does."""
    column = tl.arange(0, D)[None, :]
    scale = tl.div_rn(tl.max(tl.abs(x), axis=1, keep_dims=True), LARGEST)
    codes = tl.floor(tl.div_rn(x, tl.maximum(scale, TINY)) + 0.5)
    bounded = tl.minimum(tl.maximum(codes, -LARGEST), LARGEST).to(tl.int8)
    tl.store(cache_ptr + slot * ENTRY + column, bounded, mask=is_row & (column < D))
    scale_ptr = (cache_ptr + slot * ENTRY + D).to(tl.pointer_type(tl.float32))
    tl.store(scale_ptr, scale, mask=is_row)
