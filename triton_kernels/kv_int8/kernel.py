"""Reads and writes INT8 entries in kernels. Importing this module needs triton."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.kv_int8 import entry_length, head_dim_of

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LARGEST = tl.constexpr(127.0)
TINY = tl.constexpr(2.0**-126)
ROWS = 8
"""Entries per program of the kernels that only convert."""


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
    PITCH: tl.constexpr,
) -> tl.tensor:
    """Load pairs of elements of the entries at `slot` [N]: int16 [N, D / 2]."""
    pairs_ptr = entries_ptr.to(tl.pointer_type(tl.int16)) + slot[:, None] * (PITCH // 2)
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
    PITCH: tl.constexpr,
) -> tl.tensor:
    """Load the scales of the entries at `slot` [N]: float32 [N], 0 where there is none.

    Entries are PITCH bytes apart, and their elements are the first D.
    """
    scale_ptr = (entries_ptr + slot * PITCH + D).to(tl.pointer_type(tl.float32))
    return tl.load(scale_ptr, mask=present, other=0.0)


@triton.jit
def store_quantized(
    cache_ptr: tl.tensor,
    slot: tl.tensor,
    is_row: tl.tensor,
    x: tl.tensor,
    D: tl.constexpr,
    PITCH: tl.constexpr,
) -> None:
    """Store heads x float32 [TILE, WIDTH], 0 from column D on, at `slot` [TILE, 1] of one head's
    cache, as `quantize_entries` does."""
    column = tl.arange(0, x.shape[1])[None, :]
    scale = tl.div_rn(tl.max(tl.abs(x), axis=1, keep_dims=True), LARGEST)
    codes = tl.floor(tl.div_rn(x, tl.maximum(scale, TINY)) + 0.5)
    bounded = tl.minimum(tl.maximum(codes, -LARGEST), LARGEST).to(tl.int8)
    tl.store(cache_ptr + slot * PITCH + column, bounded, mask=is_row & (column < D))
    scale_ptr = (cache_ptr + slot * PITCH + D).to(tl.pointer_type(tl.float32))
    tl.store(scale_ptr, scale, mask=is_row)


@triton.jit(do_not_specialize=["rows"])
def quantize_kernel(
    x_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    rows: tl.tensor,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Convert TILE of the rows of x [rows, D] to entries."""
    row = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + row * D + column, mask=(row < rows) & (column < D), other=0.0)
    store_quantized(entries_ptr, row, row < rows, x.to(tl.float32), D, ENTRY)


@triton.jit(do_not_specialize=["rows"])
def dequantize_kernel(
    entries_ptr: tl.tensor,
    x_ptr: tl.tensor,
    rows: tl.tensor,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Convert TILE of the entries of `rows` rows to x [rows, D]."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows)[:, None] & (column < D)
    codes = tl.load(entries_ptr + row[:, None] * ENTRY + column, mask=inside, other=0)
    x = codes.to(tl.float32) * scales_of(entries_ptr, row, row < rows, D, ENTRY)[:, None]
    tl.store(x_ptr + row[:, None] * D + column, x.to(x_ptr.dtype.element_ty), mask=inside)


def with_strides(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int, int, int]:
    """Return keys and values [kv_heads, S, slots, E] that lie in memory alike, and the distances
    of heads and of sequences, in entries, and of slots, in elements."""
    of_head, of_cache, pitch, of_element = k.stride()
    apart = of_head % k.shape[-1] or of_cache % k.shape[-1]
    if v.stride() != k.stride() or of_element != 1 or apart:
        return with_strides(k.contiguous(), v.contiguous())
    return k, v, of_head // k.shape[-1], of_cache // k.shape[-1], pitch


def quantize(x: Tensor) -> Tensor:
    """Return the INT8 entries of keys or values [..., D]."""
    shape = *x.shape[:-1], entry_length(x.shape[-1], torch.int8)
    entries = x.new_empty(shape, dtype=torch.int8)
    _launch(quantize_kernel, x.contiguous(), entries, x.shape[-1], shape[-1])
    return entries


def dequantize(entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the keys or values [..., D] of INT8 entries as `dtype`."""
    shape = *entries.shape[:-1], head_dim_of(entries)
    x = entries.new_empty(shape, dtype=dtype)
    _launch(dequantize_kernel, entries.contiguous(), x, shape[-1], entries.shape[-1])
    return x


def _launch(
    kernel: triton.JITFunction, source: Tensor, target: Tensor, head_dim: int, entry: int
) -> None:
    rows = math.prod(source.shape[:-1])
    wrap_triton(kernel)[(triton.cdiv(rows, ROWS),)](
        source,
        target,
        rows,
        D=head_dim,
        ENTRY=entry,
        WIDTH=triton.next_power_of_2(head_dim),
        TILE=ROWS,
    )
