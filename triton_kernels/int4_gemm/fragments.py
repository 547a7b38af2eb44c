"""Pieces that the INT4 kernels share: a packed tile as operands of the tensor cores.

See `packing.py` for the order in memory. Loaded as they lie there, words need no exchange between
threads to become left operands: the reshapes below only name what each thread already holds.
"""

import triton
import triton.language as tl

WIDE = tl.constexpr(128.0)
"""What unpacked codes are above themselves: the bits of bfloat16 128 with a nibble put into its
lowest four are 128 + nibble, exactly."""


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


@triton.jit
def unpacked(words: tl.tensor, beside: tl.tensor, PTX: tl.constexpr) -> tl.tensor:
    """int16 [rows, 32] -> four bfloat16 [rows, 32]: 128 + the code of each nibble.

    `beside` [rows] is not used, but fetched ahead like the words, as Triton does for what a
    product needs. PTX makes two columns of a quarter with one instruction, or two; without, the
    same by Triton's own operators, for its interpreter.
    """
    if PTX:
        first, second, third, fourth = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 shifted;
                lop3.b32 $0, $4, 0x000F000F, 0x43004300, 0xEA;
                shr.u32 shifted, $4, 4;
                lop3.b32 $1, shifted, 0x000F000F, 0x43004300, 0xEA;
                shr.u32 shifted, $4, 8;
                lop3.b32 $2, shifted, 0x000F000F, 0x43004300, 0xEA;
                shr.u32 shifted, $4, 12;
                lop3.b32 $3, shifted, 0x000F000F, 0x43004300, 0xEA;
            }
            """,
            "=r,=r,=r,=r,r,r",
            [words, tl.broadcast_to(beside[:, None], words.shape)],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        bits = words.to(tl.uint16, bitcast=True)
        first = ((bits & 0xF) | 0x4300).to(tl.bfloat16, bitcast=True)
        second = (((bits >> 4) & 0xF) | 0x4300).to(tl.bfloat16, bitcast=True)
        third = (((bits >> 8) & 0xF) | 0x4300).to(tl.bfloat16, bitcast=True)
        fourth = ((bits >> 12) | 0x4300).to(tl.bfloat16, bitcast=True)
    return first, second, third, fourth


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
