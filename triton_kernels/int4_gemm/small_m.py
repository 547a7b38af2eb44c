"""The INT4 linear of few rows on a GPU: Triton kernels that read a weight once for up to 64 rows.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.

What is multiplied is the weight as `reference.dequantise_int4` has it, rounded to bfloat16.

A row's bits do not depend on the rows beside it. Rows are padded to a tile of 8 to 64, whose width
changes neither what is multiplied nor in which order it is added: tensor cores add up a block of
128 columns, from zero, and blocks are added in float32. Tiles of outputs, the order of blocks and
the split of K follow from the weight alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.device import capability
from eagle_aot.triton_kernels.int4_gemm.fragments import (
    activated,
    columns,
    dense,
    operand,
    per_row,
    per_row_pairs,
    quarters,
    whole,
)
from eagle_aot.triton_kernels.int4_gemm.packing import blocks_per_step, group_of
from eagle_aot.triton_kernels.int4_gemm.row_tiles import ROW_TILES
from eagle_aot.triton_kernels.tiles_of_rows import numbers_of_tiles


@triton.jit
def added(acc: tl.tensor, part: tl.tensor, PTX: tl.constexpr) -> tl.tensor:
    """The sum, of which Triton does not see that the tensor cores could add it on their own."""
    if PTX:
        total = tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, $2;",
            "=f,f,f",
            [acc, part],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        total = acc + part
    return total


@triton.jit
def loaded(
    values_ptr: tl.tensor, first: tl.tensor, GROUPS: tl.constexpr, PAIRS: tl.constexpr
) -> tl.tensor:
    """Scales or zero points of the step that begins at `first` [1, 1] -> [128, groups]."""
    if PAIRS:
        values = per_row_pairs(values_ptr, first, GROUPS)
    else:
        values = per_row(tl.load(values_ptr + first + tl.arange(0, 128 * GROUPS)[None, :]), GROUPS)
    return values


@triton.jit
def with_block(
    acc: tl.tensor,
    more: tl.tensor,
    words: tl.tensor,
    scales: tl.tuple,
    zeros: tl.tuple,
    x_ptr: tl.tensor,
    rows: tl.tensor,
    k: tl.tensor,
    K: tl.constexpr,
    MORE: tl.constexpr,
    ZEROS: tl.constexpr,
    PTX: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """acc [128, m] and more [128, MORE] + the product of a block: words, scales and zero points.

    The columns of x are those from `k` on; `more` is of the rows behind those of `acc`.
    """
    m = tl.arange(0, acc.shape[1])
    behind = acc.shape[1] + tl.arange(0, more.shape[1])
    part, other = tl.zeros_like(acc), tl.zeros_like(more)
    for i in tl.static_range(1 if WHOLE else 4):
        if WHOLE:
            weight = whole(words, scales, zeros, ZEROS, PTX)
        else:
            weight = dense(words, scales[i], zeros[i], i, ZEROS, PTX)
        column = k + 32 * i + tl.arange(0, weight.shape[1])
        part = tl.dot(weight, columns(x_ptr, m, rows, column, K), part)
        if MORE:
            other = tl.dot(weight, columns(x_ptr, behind, rows, column, K), other)
    acc = added(acc, part, PTX)
    if MORE:
        more = added(more, other, PTX)
    return acc, more


@triton.jit
def stored(
    acc: tl.tensor,
    out_ptr: tl.tensor,
    tile: tl.tensor,
    m: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
) -> None:
    """Write rows `m` of a tile of outputs, activated where there is an activation."""
    if ACTIVATION != "":
        acc = activated(acc, ACTIVATION)
    n = tile * acc.shape[0] + tl.arange(0, acc.shape[0])
    out = out_ptr + m[None, :] * WIDTH + n[:, None]
    live = (m < rows)[None, :] & (n < WIDTH)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows"])
def int4_small_m_kernel(
    x_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    TOTAL: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PTX: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    PAIRS: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """One part of K of one tile of outputs, ROWS + MORE of its rows: x [rows, K] -> out [splits,
    rows, N].

    With an activation (and no split) out is [1, rows, N / 2]. A step is BLOCKS x 128 columns; this
    program takes STEPS of the TOTAL. WHOLE as in `row_tiles.RowTile`.
    """
    GROUPS: tl.constexpr = BLOCKS * 128 // GROUP
    WIDTH: tl.constexpr = N if ACTIVATION == "" else N // 2
    TAKEN: tl.constexpr = ROWS + MORE
    first_row = tl.program_id(0).to(tl.int64) * TAKEN
    x_ptr += first_row * K
    out_ptr += (tl.program_id(1).to(tl.int64) * rows + first_row) * WIDTH
    rows -= tl.program_id(0) * TAKEN  # from here on: of x and out as they now begin
    m = tl.arange(0, ROWS)
    word = tl.arange(0, 4096)[None, :]
    tile = tl.program_id(2).to(tl.int64) * TOTAL
    first = tl.program_id(1) * STEPS
    acc = tl.zeros((128, ROWS), tl.float32)
    more = tl.zeros((128, MORE if MORE else 16), tl.float32)
    for step in tl.range(first, tl.minimum(first + STEPS, TOTAL), num_stages=STAGES):
        here = tile + step
        scales = loaded(scales_ptr, here * (128 * GROUPS), GROUPS, PAIRS)
        zeros = scales
        if ZEROS:
            zeros = loaded(zeros_ptr, here * (128 * GROUPS), GROUPS, PAIRS)
        for block in tl.static_range(BLOCKS):
            s, z = quarters(scales, block, BLOCKS), quarters(zeros, block, BLOCKS)
            words = operand(tl.load(codes_ptr + (here * BLOCKS + block) * 4096 + word))
            k = (step * BLOCKS + block) * 128
            acc, more = with_block(acc, more, words, s, z, x_ptr, rows, k,
                                   K, MORE, ZEROS, PTX, WHOLE)  # fmt: skip
    stored(acc, out_ptr, tl.program_id(2), m, rows, WIDTH, ACTIVATION)
    if MORE:
        behind = ROWS + tl.arange(0, MORE)
        stored(more, out_ptr, tl.program_id(2), behind, rows, WIDTH, ACTIVATION)


def launch(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
) -> Tensor:
    """The product as calls of the kernel: arguments and result as for `op.int4_small_m`.

    One for each kind of tile that the rows may take. An empty grid is not launched, neither by
    Triton nor by what torch compiles.
    """
    group = group_of(codes, scales)
    blocks = blocks_per_step(group)
    total = scales.shape[1]
    width = features // 2 if activation else features
    dtype = x.dtype if splits == 1 else torch.float32
    x = x.contiguous()
    out = x.new_empty((splits, *x.shape[:-1], width), dtype=dtype)
    for tile, number in numbers_of_tiles(x.shape[-2], ROW_TILES[blocks]):
        wrap_triton(int4_small_m_kernel)[(number, splits, codes.shape[0])](
            x,
            codes,
            scales,
            scales if zeros is None else zeros,
            out,
            x.shape[-2],
            N=features,
            K=x.shape[-1],
            GROUP=group,
            BLOCKS=blocks,
            TOTAL=total,
            STEPS=triton.cdiv(total, splits),
            STAGES=tile.stages,
            ZEROS=zeros is not None,
            ACTIVATION=activation,
            PTX=0 if triton.knobs.runtime.interpret else capability()[0],
            ROWS=tile.first,
            MORE=tile.more,
            PAIRS=tile.pairs,
            WHOLE=tile.whole,
            num_warps=tile.warps,
        )
    return out
