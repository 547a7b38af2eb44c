"""The INT4 linear of few rows on a GPU: Triton kernels that read a weight once for up to 64 rows.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.

A row's bits do not depend on the rows beside it. Rows are padded to a tile of 8, 16, 32 or 64,
whose width changes neither what is multiplied nor in which order it is added; tiles of outputs, the
order of groups and the split of K follow from the weight alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.int4_gemm.fragments import (
    activated,
    centred,
    columns,
    operand,
    per_row,
    per_row_pairs,
    quarters,
    unpacked,
)
from eagle_aot.triton_kernels.int4_gemm.packing import blocks_per_step, group_of
from eagle_aot.triton_kernels.int4_gemm.row_tiles import numbers_of_tiles


@triton.jit
def scaled(part: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """The product of a group [rows, m], times its scale [rows], float32."""
    return part * scale.to(tl.float32)[:, None]


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
def accumulated(
    acc: tl.tensor,
    weights: tl.tuple,
    scales: tl.tuple,
    x_ptr: tl.tensor,
    m: tl.tensor,
    rows: tl.tensor,
    k: tl.tensor,
    K: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """acc [128, m] + the product of a block: four quarters [128, 32] and their scales [128].

    Scales enter in float32, after the products of their group. `k` are the columns of the first
    quarter.
    """
    w0, w1, w2, w3 = weights
    s0, s1, s2, s3 = scales
    x0 = columns(x_ptr, m, rows, k, K)
    x1 = columns(x_ptr, m, rows, k + 32, K)
    x2 = columns(x_ptr, m, rows, k + 64, K)
    x3 = columns(x_ptr, m, rows, k + 96, K)
    if GROUP == 32:
        acc += scaled(tl.dot(w0, x0), s0)
        acc += scaled(tl.dot(w1, x1), s1)
        acc += scaled(tl.dot(w2, x2), s2)
        acc += scaled(tl.dot(w3, x3), s3)
    elif GROUP == 64:
        acc += scaled(tl.dot(w1, x1, tl.dot(w0, x0)), s0)
        acc += scaled(tl.dot(w3, x3, tl.dot(w2, x2)), s2)
    else:
        part = tl.dot(w1, x1, tl.dot(w0, x0))
        acc += scaled(tl.dot(w3, x3, tl.dot(w2, x2, part)), s0)
    return acc


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
    PAIRS: tl.constexpr,
) -> None:
    """One part of K of one tile of outputs, ROWS rows of it: x [rows, K] -> out [splits, rows, N].

    With an activation (and no split) out is [1, rows, N / 2]. A step is BLOCKS x 128 columns; this
    program takes STEPS of the TOTAL.
    """
    GROUPS: tl.constexpr = BLOCKS * 128 // GROUP
    WIDTH: tl.constexpr = N if ACTIVATION == "" else N // 2
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    x_ptr += first_row * K
    out_ptr += (tl.program_id(1).to(tl.int64) * rows + first_row) * WIDTH
    rows -= tl.program_id(0) * ROWS  # from here on: of x and out as they now begin
    m = tl.arange(0, ROWS)
    word = tl.arange(0, 4096)[None, :]
    tile = tl.program_id(2).to(tl.int64) * TOTAL
    first = tl.program_id(1) * STEPS
    acc = tl.zeros((128, ROWS), tl.float32)
    for step in tl.range(first, tl.minimum(first + STEPS, TOTAL), num_stages=STAGES):
        here = tile + step
        scales = loaded(scales_ptr, here * (128 * GROUPS), GROUPS, PAIRS)
        zeros = scales
        if ZEROS:
            zeros = loaded(zeros_ptr, here * (128 * GROUPS), GROUPS, PAIRS)
        for block in tl.static_range(BLOCKS):
            s = quarters(scales, block, BLOCKS)
            z0, z1, z2, z3 = quarters(zeros, block, BLOCKS)
            words = tl.load(codes_ptr + (here * BLOCKS + block) * 4096 + word)
            w0, w1, w2, w3 = unpacked(operand(words), s[0], PTX)
            w0 = centred(w0, z0, ZEROS, PTX)
            w1 = centred(w1, z1, ZEROS, PTX)
            w2 = centred(w2, z2, ZEROS, PTX)
            w3 = centred(w3, z3, ZEROS, PTX)
            w = w0, w1, w2, w3
            k = (step * BLOCKS + block) * 128 + tl.arange(0, 32)
            acc = accumulated(acc, w, s, x_ptr, m, rows, k, K, GROUP)
    stored(acc, out_ptr, tl.program_id(2), m, rows, WIDTH, ACTIVATION)


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
    for tile, number in numbers_of_tiles(x.shape[-2], blocks):
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
            PTX=not triton.knobs.runtime.interpret,
            ROWS=tile.rows,
            PAIRS=tile.pairs,
            num_warps=tile.warps,
        )
    return out
