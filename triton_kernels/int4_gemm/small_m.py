"""The INT4 linear of few rows on a GPU: a Triton kernel that reads a weight once for each 8 rows.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.

A row's bits do not depend on the rows beside it. Rows are padded to tiles of 8 whatever their
number, and each tile is computed alike; tiles of outputs, the order in which groups are added and
the split of K follow from the weight alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.int4_gemm.fragments import (
    WIDE,
    activated,
    columns,
    operand,
    per_row,
    quarters,
    unpacked,
)
from eagle_aot.triton_kernels.int4_gemm.packing import blocks_per_step, group_of

ROWS = tl.constexpr(8)
"""Of a tile of x."""
WARPS = 4
STAGES = 4, 3
"""Steps in flight, of one and of two blocks each."""


@triton.jit
def quarter(
    acc: tl.tensor,
    codes: tl.tensor,
    x: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    ZEROS: tl.constexpr,
) -> tl.tensor:
    """acc [rows, 8] + 32 columns of one group: codes [rows, 32] + 128, x [32, 8].

    Zero points leave as products of their own, exactly: (128 + q) x - 136 x + (8 - z) x. The
    scale enters after them, in float32.
    """
    part = tl.dot(tl.full(codes.shape, -WIDE - 8, tl.float32).to(tl.bfloat16), x)
    if ZEROS:
        centre = (8.0 - zero.to(tl.float32)).to(tl.bfloat16)
        part = tl.dot(tl.broadcast_to(centre[:, None], codes.shape), x, part)
    part = tl.dot(codes, x, part)
    return acc + part * scale.to(tl.float32)[:, None]


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
) -> None:
    """One part of K of one tile of outputs, 8 rows of it: x [rows, K] -> out [splits, rows, N].

    With an activation (and no split) out is [1, rows, N / 2]. A step is BLOCKS x 128 columns; this
    program takes STEPS of the TOTAL.
    """
    GROUPS: tl.constexpr = BLOCKS * 128 // GROUP
    WIDTH: tl.constexpr = N if ACTIVATION == "" else N // 2
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    x_ptr += first_row * K
    out_ptr += (tl.program_id(2).to(tl.int64) * rows + first_row) * WIDTH
    rows -= tl.program_id(0) * ROWS  # from here on: of x and out as they now begin
    m = tl.arange(0, ROWS)
    word = tl.arange(0, 4096)[None, :]
    value = tl.arange(0, 128 * GROUPS)[None, :]
    tile = tl.program_id(1).to(tl.int64) * TOTAL
    first = tl.program_id(2) * STEPS
    acc = tl.zeros((128, ROWS), tl.float32)
    for step in tl.range(first, tl.minimum(first + STEPS, TOTAL), num_stages=STAGES):
        here = tile + step
        scales = per_row(tl.load(scales_ptr + here * (128 * GROUPS) + value), GROUPS)
        zeros = scales
        if ZEROS:
            zeros = per_row(tl.load(zeros_ptr + here * (128 * GROUPS) + value), GROUPS)
        for block in tl.static_range(BLOCKS):
            s0, s1, s2, s3 = quarters(scales, block, BLOCKS)
            z0, z1, z2, z3 = quarters(zeros, block, BLOCKS)
            words = tl.load(codes_ptr + (here * BLOCKS + block) * 4096 + word)
            w0, w1, w2, w3 = unpacked(operand(words), s0, PTX)
            k = (step * BLOCKS + block) * 128 + tl.arange(0, 32)
            acc = quarter(acc, w0, columns(x_ptr, m, rows, k, K), s0, z0, ZEROS)
            acc = quarter(acc, w1, columns(x_ptr, m, rows, k + 32, K), s1, z1, ZEROS)
            acc = quarter(acc, w2, columns(x_ptr, m, rows, k + 64, K), s2, z2, ZEROS)
            acc = quarter(acc, w3, columns(x_ptr, m, rows, k + 96, K), s3, z3, ZEROS)
    TILE: tl.constexpr = 128 if ACTIVATION == "" else 64
    if ACTIVATION != "":
        acc = activated(acc, ACTIVATION)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    out = out_ptr + m[None, :] * WIDTH + n[:, None]
    live = (m < rows)[None, :] & (n < WIDTH)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=live)


def launch(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
) -> Tensor:
    """The product as a call of the kernel: arguments and result as for `op.int4_small_m`."""
    group = group_of(codes, scales)
    blocks = blocks_per_step(group)
    total = scales.shape[1]
    width = features // 2 if activation else features
    dtype = x.dtype if splits == 1 else torch.float32
    row_tiles = triton.cdiv(x.shape[-2], ROWS.value)
    out = x.new_empty((splits, *x.shape[:-1], width), dtype=dtype)
    wrap_triton(int4_small_m_kernel)[(row_tiles, codes.shape[0], splits)](
        x.contiguous(),
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
        STAGES=STAGES[blocks - 1],
        ZEROS=zeros is not None,
        ACTIVATION=activation,
        PTX=not triton.knobs.runtime.interpret,
        num_warps=WARPS,
    )
    return out
