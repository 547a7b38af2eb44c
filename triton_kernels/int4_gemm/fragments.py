"""Parts that both INT4 kernels use: a packed tile as operands of the tensor cores.

`packing.py` describes the memory layout. Words that are loaded in that order become left operands
without an exchange between threads: the reshapes below only name what each thread already holds.

`PTX` is the major compute capability of the instructions, 0 in Triton's interpreter.
"""

from collections.abc import Callable

import triton
import triton.language as tl


@triton.jit
def operand(words: tl.tensor) -> tl.tensor:
    """Reorder packed words int16 [tiles, 32 x rows] to [rows x tiles, 32], one quarter per nibble;
    a tile has 128 rows, half a tile 64."""
    tiles: tl.constexpr = words.shape[0]
    parts: tl.constexpr = words.shape[1] // 512
    bits = tl.reshape(words, (tiles, 2, parts, 8, 4, 2, 2, 2))
    return tl.reshape(tl.permute(bits, (0, 2, 6, 3, 1, 5, 4, 7)), (tiles * parts * 16, 32))


@triton.jit
def per_row(values: tl.tensor, GROUPS: tl.constexpr) -> tl.tensor:
    """Reorder packed scales or zero points [tiles, rows x groups] to [rows x tiles, groups]."""
    rows: tl.constexpr = values.shape[0] * values.shape[1] // GROUPS
    bits = tl.reshape(values, (rows // 16, 8, GROUPS, 2))
    return tl.reshape(tl.permute(bits, (0, 3, 1, 2)), (rows, GROUPS))


@triton.jit
def per_row_pairs(
    values_ptr: tl.tensor, first: tl.tensor, GROUPS: tl.constexpr, ROWS: tl.constexpr = 128
) -> tl.tensor:
    """Load packed scales or zero points from `first` [tiles, 1] on: float32 [ROWS x tiles, groups].

    Two rows are loaded at a time: eight warps have too few values to prefetch them one by one.
    """
    pairs_ptr = values_ptr.to(tl.pointer_type(tl.int32)) + first // 2
    both = tl.load(pairs_ptr + tl.arange(0, ROWS // 2 * GROUPS)[None, :])
    low = (both << 16).to(tl.float32, bitcast=True)
    high = (both & -65536).to(tl.float32, bitcast=True)
    return per_row(tl.reshape(tl.join(low, high), (both.shape[0], ROWS * GROUPS)), GROUPS)


@triton.jit
def per_row_of_group(
    values_ptr: tl.tensor, first: tl.tensor, group: tl.tensor, GROUPS: tl.constexpr
) -> tl.tensor:
    """Load the values of one `group` of the step at `first` [tiles, 1]: bfloat16 [128 x tiles]."""
    pairs_ptr = values_ptr.to(tl.pointer_type(tl.int32)) + first // 2 + group
    both = tl.load(pairs_ptr + tl.arange(0, 64)[None, :] * GROUPS)
    low = (both << 16).to(tl.float32, bitcast=True)
    high = (both & -65536).to(tl.float32, bitcast=True)
    values = per_row(tl.reshape(tl.join(low, high), (both.shape[0], 128)), 1)
    return tl.reshape(values, (both.shape[0] * 128,)).to(tl.bfloat16)


@triton.jit
def quarters(values: tl.tensor, block: tl.constexpr, BLOCKS: tl.constexpr) -> tl.tensor:
    """Split values [rows, groups] of a step into [rows] for each quarter of one of its blocks."""
    rows: tl.constexpr = values.shape[0]
    if values.shape[1] == 4:
        even, odd = tl.split(tl.reshape(values, (rows, 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
    else:
        first, third = tl.split(values)
        if BLOCKS == 2:  # one group a block
            if block == 0:
                third = first
            else:
                first = third
        second, fourth = first, third
    return first, second, third, fourth


@triton.jit
def columns(
    x_ptr: tl.tensor, m: tl.tensor, rows: tl.tensor, k: tl.tensor, K: tl.constexpr
) -> tl.tensor:
    """Load columns `k` of rows `m` of x [rows, K], transposed: [columns, rows]. Zero outside."""
    inside = (m < rows)[None, :] & (k < K)[:, None]
    return tl.load(x_ptr + m[None, :] * K + k[:, None], mask=inside, other=0.0)


def _sum(left: str, right: str) -> str:
    return f"add.rn.bf16x2 $0, {left}, {right};"


def _product(left: str, right: str) -> str:
    return f"mul.rn.bf16x2 $0, {left}, {right};"


def _fused_sum(left: str, right: str) -> str:
    """Add by a fused operation with the same bits: 1 * left + right."""
    ones = "0x3F803F80"
    return f"{{ .reg .b32 one; mov.b32 one, {ones}; fma.rn.bf16x2 $0, {left}, one, {right}; }}"


def _fused_product(left: str, right: str) -> str:
    """Multiply by a fused operation with the same bits: left * right - 0, which keeps the sign."""
    zero = "0x80008000"
    return f"{{ .reg .b32 zero; mov.b32 zero, {zero}; fma.rn.bf16x2 $0, {left}, {right}, zero; }}"


def _quarter(shift: int, add: Callable[[str, str], str]) -> str:
    """Return the instructions that extract two columns of a quarter from two words.

    They are on one line: torch writes a kernel's source, and the constants that it names, between
    quotes into a program's text, where a backslash would break them.
    """
    return " ".join(
        (
            "{ .reg .b32 wide, offset; mov.b32 offset, 0xC308C308;",
            f"shr.u32 wide, $1, {shift};",
            "lop3.b32 wide, wide, 0x000F000F, 0x43004300, 0xEA;",
            add("wide", "offset"),
            "}",
        )
    )


SHIFTS = (0, 4, 8, 12)
FIRST, SECOND, THIRD, FOURTH = (tl.constexpr(_quarter(shift, _sum)) for shift in SHIFTS)
SUM, PRODUCT = tl.constexpr(_sum("$1", "$2")), tl.constexpr(_product("$1", "$2"))
# Before Hopper, bfloat16 has only fused operations, which take one more instruction.
OLD_FIRST, OLD_SECOND, OLD_THIRD, OLD_FOURTH = (
    tl.constexpr(_quarter(shift, _fused_sum)) for shift in SHIFTS
)
OLD_SUM = tl.constexpr(_fused_sum("$1", "$2"))
OLD_PRODUCT = tl.constexpr(_fused_product("$1", "$2"))
HOPPER = tl.constexpr(9)


@triton.jit
def quarter(
    words: tl.tensor, prefetched: tl.tensor, QUARTER: tl.constexpr, PTX: tl.constexpr
) -> tl.tensor:
    """Extract one nibble of words int16 [rows, 32] and subtract 8, exactly: bfloat16 [rows, 32].

    A nibble in the lowest four bits of bfloat16 128 makes 128 + nibble, from which 136 is
    subtracted. `prefetched` [rows] is not used, but it makes Triton prefetch it like the words, as
    it does with operands of a product. Without PTX, Triton's own operators do the same.
    """
    if PTX:
        asm: tl.constexpr = (
            (
                (FIRST if QUARTER == 0 else SECOND)
                if QUARTER < 2
                else (THIRD if QUARTER == 2 else FOURTH)
            )
            if PTX >= HOPPER
            else (
                (OLD_FIRST if QUARTER == 0 else OLD_SECOND)
                if QUARTER < 2
                else (OLD_THIRD if QUARTER == 2 else OLD_FOURTH)
            )
        )
        code = tl.inline_asm_elementwise(
            asm,
            "=r,r,r",
            [words, tl.broadcast_to(prefetched.to(tl.bfloat16)[:, None], words.shape)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        bits = words.to(tl.uint16, bitcast=True) >> (4 * QUARTER)
        code = ((bits & 0xF).to(tl.float32) - 8).to(tl.bfloat16)
    return code


@triton.jit
def centred(codes: tl.tensor, zero: tl.tensor, ZEROS: tl.constexpr, PTX: tl.constexpr) -> tl.tensor:
    """Turn codes - 8 [rows, 32] into codes - zero points [rows], bfloat16 [rows, 32].

    The result is exact if zero points are integers. Without ZEROS they are 8.
    """
    if not ZEROS:
        return codes
    shift = (8.0 - zero.to(tl.float32)).to(tl.bfloat16)
    shifts = tl.broadcast_to(shift[:, None], codes.shape)
    if not PTX:
        return (codes.to(tl.float32) + shifts.to(tl.float32)).to(tl.bfloat16)
    return tl.inline_asm_elementwise(
        SUM if PTX >= HOPPER else OLD_SUM,
        "=r,r,r",
        [codes, shifts],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def dense(
    words: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    QUARTER: tl.constexpr,
    ZEROS: tl.constexpr,
    PTX: tl.constexpr,
) -> tl.tensor:
    """Dequantise a quarter of words [rows, 32] with scale and zero [rows]: bfloat16 [rows, 32]."""
    codes = centred(quarter(words, scale, QUARTER, PTX), zero, ZEROS, PTX)
    scales = tl.broadcast_to(scale.to(tl.bfloat16)[:, None], codes.shape)
    if PTX:
        weight = tl.inline_asm_elementwise(
            PRODUCT if PTX >= HOPPER else OLD_PRODUCT,
            "=r,r,r",
            [codes, scales],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        weight = (codes.to(tl.float32) * scales.to(tl.float32)).to(tl.bfloat16)
    return weight


@triton.jit
def concatenate(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """Concatenate [rows, k] and [rows, k] to [rows, 2 k]."""
    rows: tl.constexpr = left.shape[0]
    k: tl.constexpr = left.shape[1]
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (rows, 2 * k))


@triton.jit
def whole(
    words: tl.tensor, scales: tl.tuple, zeros: tl.tuple, ZEROS: tl.constexpr, PTX: tl.constexpr
) -> tl.tensor:
    """Dequantise a block of the weight, bfloat16 [rows, 128], with four scales and zero points.

    In one product of so many columns Triton unpacks a part while it multiplies the previous one.
    """
    w0 = dense(words, scales[0], zeros[0], 0, ZEROS, PTX)
    w1 = dense(words, scales[1], zeros[1], 1, ZEROS, PTX)
    w2 = dense(words, scales[2], zeros[2], 2, ZEROS, PTX)
    w3 = dense(words, scales[3], zeros[3], 3, ZEROS, PTX)
    return concatenate(concatenate(w0, w1), concatenate(w2, w3))


@triton.jit
def activated(product: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Activate [rows, m], eight gate rows before eight up rows: float32 [rows / 2, m]."""
    rows: tl.constexpr = product.shape[0]
    m: tl.constexpr = product.shape[1]
    pairs = tl.permute(tl.reshape(product, (rows // 16, 2, 8, m)), (0, 2, 3, 1))
    gate, up = tl.split(pairs)
    if ACTIVATION == "gelu_tanh":
        cubic = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate *= tl.sigmoid(2 * cubic)  # (1 + tanh(y)) / 2
    else:
        tl.static_assert(ACTIVATION == "silu")
        gate *= tl.sigmoid(gate)
    return tl.reshape(gate * up, (rows // 2, m))
