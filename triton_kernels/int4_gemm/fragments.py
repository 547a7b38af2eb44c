"""Pieces that the INT4 kernels share: a packed tile as operands of the tensor cores.

See `packing.py` for the order in memory. Loaded as they lie there, words need no exchange between
threads to become left operands: the reshapes below only name what each thread already holds.

`PTX` is the major compute capability whose instructions are written, 0 in Triton's interpreter.
"""

from collections.abc import Callable

import triton
import triton.language as tl


@triton.jit
def operand(words: tl.tensor) -> tl.tensor:
    """Packed words int16 [tiles, 4096] -> [128 x tiles, 32], a quarter of the columns a nibble."""
    tiles: tl.constexpr = words.shape[0]
    bits = tl.reshape(words, (tiles, 2, 8, 8, 4, 2, 2, 2))
    return tl.reshape(tl.permute(bits, (0, 2, 6, 3, 1, 5, 4, 7)), (tiles * 128, 32))


@triton.jit
def per_row(values: tl.tensor, GROUPS: tl.constexpr) -> tl.tensor:
    """Packed scales or zero points [tiles, 128 x groups] -> [128 x tiles, groups]."""
    tiles: tl.constexpr = values.shape[0]
    bits = tl.reshape(values, (tiles * 8, 8, GROUPS, 2))
    return tl.reshape(tl.permute(bits, (0, 3, 1, 2)), (tiles * 128, GROUPS))


@triton.jit
def per_row_pairs(values_ptr: tl.tensor, first: tl.tensor, GROUPS: tl.constexpr) -> tl.tensor:
    """Packed scales or zero points from `first` [tiles, 1] on -> float32 [128 x tiles, groups].

    Two rows a load: eight warps have too few values to copy them ahead one by one.
    """
    pairs_ptr = values_ptr.to(tl.pointer_type(tl.int32)) + first // 2
    both = tl.load(pairs_ptr + tl.arange(0, 64 * GROUPS)[None, :])
    low = (both << 16).to(tl.float32, bitcast=True)
    high = (both & -65536).to(tl.float32, bitcast=True)
    return per_row(tl.reshape(tl.join(low, high), (both.shape[0], 128 * GROUPS)), GROUPS)


@triton.jit
def per_row_of_group(
    values_ptr: tl.tensor, first: tl.tensor, group: tl.tensor, GROUPS: tl.constexpr
) -> tl.tensor:
    """Of the step from `first` [tiles, 1] on, those of one `group`: bfloat16 [128 x tiles]."""
    pairs_ptr = values_ptr.to(tl.pointer_type(tl.int32)) + first // 2 + group
    both = tl.load(pairs_ptr + tl.arange(0, 64)[None, :] * GROUPS)
    low = (both << 16).to(tl.float32, bitcast=True)
    high = (both & -65536).to(tl.float32, bitcast=True)
    values = per_row(tl.reshape(tl.join(low, high), (both.shape[0], 128)), 1)
    return tl.reshape(values, (both.shape[0] * 128,)).to(tl.bfloat16)


@triton.jit
def quarters(values: tl.tensor, block: tl.constexpr, BLOCKS: tl.constexpr) -> tl.tensor:
    """Per-row values [rows, groups] of a step -> one [rows] for each quarter of a block of it."""
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
    """Columns `k` of rows `m` of x [rows, K], transposed: [columns, rows]. Zero outside."""
    inside = (m < rows)[None, :] & (k < K)[:, None]
    return tl.load(x_ptr + m[None, :] * K + k[:, None], mask=inside, other=0.0)


def _sum(left: str, right: str) -> str:
    return f"add.rn.bf16x2 $0, {left}, {right};"


def _product(left: str, right: str) -> str:
    return f"mul.rn.bf16x2 $0, {left}, {right};"


def _fused_sum(left: str, right: str) -> str:
    """The same bits: one times a number is that number."""
    one = "0x3F803F80"
    return f"{{ .reg .b32 one; mov.b32 one, {one}; fma.rn.bf16x2 $0, {left}, one, {right}; }}"


def _fused_product(left: str, right: str) -> str:
    """The same bits: less zero a product is itself, with its sign."""
    zero = "0x80008000"
    return f"{{ .reg .b32 zero; mov.b32 zero, {zero}; fma.rn.bf16x2 $0, {left}, {right}, zero; }}"


def _quarter(shift: int, add: Callable[[str, str], str]) -> str:
    """Instructions that make two columns of a quarter from two words: two, and a shift.

    On one line: torch writes a kernel's source, and the constants it names, into a program's text
    between quotes, where a backslash would end them otherwise than it began them.
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
# Before Hopper bfloat16 has no arithmetic but this, which takes an instruction more.
OLD_FIRST, OLD_SECOND, OLD_THIRD, OLD_FOURTH = (
    tl.constexpr(_quarter(shift, _fused_sum)) for shift in SHIFTS
)
OLD_SUM = tl.constexpr(_fused_sum("$1", "$2"))
OLD_PRODUCT = tl.constexpr(_fused_product("$1", "$2"))
HOPPER = tl.constexpr(9)


@triton.jit
def quarter(
    words: tl.tensor, beside: tl.tensor, QUARTER: tl.constexpr, PTX: tl.constexpr
) -> tl.tensor:
    """int16 [rows, 32] -> bfloat16 [rows, 32]: the code of one nibble of each less 8, exactly.

    The bits of bfloat16 128 with a nibble put into its lowest four are 128 + nibble, and 136 is
    taken off. `beside` [rows] is not used, but fetched ahead like the words, as Triton does for
    what a product needs. Without PTX the same by Triton's own operators.
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
            [words, tl.broadcast_to(beside.to(tl.bfloat16)[:, None], words.shape)],
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
    """Codes less 8 [rows, 32] and zero points [rows] -> codes less zero points, bfloat16.

    Exact where zero points are integers. Without ZEROS they are 8.
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
    """A quarter of words [rows, 32], scale and zero point [rows] -> the weight, bfloat16."""
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
def beside(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """[rows, k] and [rows, k] -> [rows, 2 k]."""
    rows: tl.constexpr = left.shape[0]
    k: tl.constexpr = left.shape[1]
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (rows, 2 * k))


@triton.jit
def whole(
    words: tl.tensor, scales: tl.tuple, zeros: tl.tuple, ZEROS: tl.constexpr, PTX: tl.constexpr
) -> tl.tensor:
    """A block of the weight, bfloat16 [rows, 128], of its words and of four scales and zero points.

    Of one product of so many columns Triton unpacks a part while it multiplies the one before.
    """
    w0 = dense(words, scales[0], zeros[0], 0, ZEROS, PTX)
    w1 = dense(words, scales[1], zeros[1], 1, ZEROS, PTX)
    w2 = dense(words, scales[2], zeros[2], 2, ZEROS, PTX)
    w3 = dense(words, scales[3], zeros[3], 3, ZEROS, PTX)
    return beside(beside(w0, w1), beside(w2, w3))


@triton.jit
def activated(product: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """[rows, m], eight gate rows before eight up rows -> act(gate) * up, float32 [rows / 2, m]."""
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
