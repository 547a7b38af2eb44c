"""The INT4 linear for few rows on a GPU: a Triton kernel that reads a weight once per tile of rows.

Importing this module needs triton. The operator of `op.py` imports it only to run on a GPU or to be
lowered for one.

The weight is that of `reference.dequantise_int4`, rounded to bfloat16.

A row's bits do not depend on the other rows. Rows are padded to a tile of 8 to 96, whose size
changes neither the factors nor the order of sums: tensor cores add up a block of 128 columns, from
zero, and blocks are added in float32. The tiles of outputs, the order of blocks and the split of K
depend on the weight alone.
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
from eagle_aot.triton_kernels.int4_gemm.tiling import SMALL_M_TILES
from eagle_aot.triton_kernels.row_tiling import tile_counts


@triton.jit
def added(acc: tl.tensor, part: tl.tensor, PTX: tl.constexpr) -> tl.tensor:
    """Return acc + part in a form that Triton does not turn into a sum of the tensor cores."""
    if PTX:
        total = tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, $2;", "=f,f,f", [acc, part], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        total = acc + part
    return total


@triton.jit
def loaded(
    values_ptr: tl.tensor,
    first: tl.tensor,
    GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr = 128,
) -> tl.tensor:
    """Load scales or zero points of ROWS rows of a step, from `first` [1, 1] on: [ROWS, groups]."""
    if PAIRS:
        values = per_row_pairs(values_ptr, first, GROUPS, ROWS)
    else:
        values = per_row(tl.load(values_ptr + first + tl.arange(0, ROWS * GROUPS)[None, :]), GROUPS)
    return values


@triton.jit
def add_block(
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
    """Add the product of a block to acc [128, m] and more [128, MORE].

    The columns of x start at `k`; the rows of `more` follow those of `acc`.
    """
    m = tl.arange(0, acc.shape[1])
    more_m = acc.shape[1] + tl.arange(0, more.shape[1])
    part, more_part = tl.zeros_like(acc), tl.zeros_like(more)
    for i in tl.static_range(1 if WHOLE else 4):
        if WHOLE:
            weight = whole(words, scales, zeros, ZEROS, PTX)
        else:
            weight = dense(words, scales[i], zeros[i], i, ZEROS, PTX)
        column = k + 32 * i + tl.arange(0, weight.shape[1])
        part = tl.dot(weight, columns(x_ptr, m, rows, column, K), part)
        if MORE:
            more_part = tl.dot(weight, columns(x_ptr, more_m, rows, column, K), more_part)
    acc = added(acc, part, PTX)
    if MORE:
        more = added(more, more_part, PTX)
    return acc, more


@triton.jit
def store(
    acc: tl.tensor,
    out_ptr: tl.tensor,
    tile: tl.tensor,
    m: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
) -> None:
    """Write rows `m` of a tile of outputs, after the activation if there is one."""
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
    """Compute one part of K of one tile of outputs, for ROWS + MORE rows.

    x [rows, K] -> out [splits, rows, N], or [1, rows, N / 2] with an activation (and no split). A
    step is BLOCKS x 128 columns; this program takes STEPS of the TOTAL. PAIRS and WHOLE are those
    of `tiling.SmallMTile`.
    """
    GROUPS: tl.constexpr = BLOCKS * 128 // GROUP
    WIDTH: tl.constexpr = N if ACTIVATION == "" else N // 2
    TILE: tl.constexpr = ROWS + MORE
    first_row = tl.program_id(0).to(tl.int64) * TILE
    x_ptr += first_row * K
    out_ptr += (tl.program_id(1).to(tl.int64) * rows + first_row) * WIDTH
    rows -= tl.program_id(0) * TILE  # counted from the new starts of x and out
    m = tl.arange(0, ROWS)
    word = tl.arange(0, 4096)[None, :]
    tile = tl.program_id(2).to(tl.int64) * TOTAL
    first = tl.program_id(1) * STEPS
    acc = tl.zeros((128, ROWS), tl.float32)
    more = tl.zeros((128, MORE if MORE else 16), tl.float32)
    for step in tl.range(first, tl.minimum(first + STEPS, TOTAL), num_stages=STAGES):
        index = tile + step
        scales = loaded(scales_ptr, index * (128 * GROUPS), GROUPS, PAIRS)
        zeros = scales
        if ZEROS:
            zeros = loaded(zeros_ptr, index * (128 * GROUPS), GROUPS, PAIRS)
        for block in tl.static_range(BLOCKS):
            s, z = quarters(scales, block, BLOCKS), quarters(zeros, block, BLOCKS)
            words = operand(tl.load(codes_ptr + (index * BLOCKS + block) * 4096 + word))
            k = (step * BLOCKS + block) * 128
            acc, more = add_block(acc, more, words, s, z, x_ptr, rows, k,
                                   K, MORE, ZEROS, PTX, WHOLE)  # fmt: skip
    store(acc, out_ptr, tl.program_id(2), m, rows, WIDTH, ACTIVATION)
    if MORE:
        more_m = ROWS + tl.arange(0, MORE)
        store(more, out_ptr, tl.program_id(2), more_m, rows, WIDTH, ACTIVATION)


def launch(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
    above: int = 0,
) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.int4_small_m`, [splits, ..., M, N].

    There is one call per tile size that may be needed. Neither Triton nor torch's compiled code
    launches an empty grid. For at most `above` rows nothing is launched or written.
    """
    group = group_of(codes, scales)
    blocks = blocks_per_step(group)
    total = scales.shape[1]
    width = features // 2 if activation else features
    dtype = x.dtype if splits == 1 else torch.float32
    x = x.contiguous()
    out = x.new_empty((splits, *x.shape[:-1], width), dtype=dtype)
    for tile, count in tile_counts(x.shape[-2], SMALL_M_TILES[blocks], above):
        wrap_triton(int4_small_m_kernel)[(count, splits, codes.shape[0])](
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
