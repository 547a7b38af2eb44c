"""The dense linear of few rows on a GPU: a Triton kernel that reads a weight once for 64 rows.

A row's bits do not depend on the rows beside it: whatever tile it is padded to, tensor cores add up
its columns in one order, and the split of K follows from the weight alone.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.dense_gemm.tiling import ROW_TILES, STEP
from eagle_aot.triton_kernels.tiles_of_rows import numbers_of_tiles

WARPS = 4


@triton.jit(do_not_specialize=["rows"])
def dense_small_m_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One part of K of one tile of outputs: x [rows, K], weight [N, K] -> out [splits, rows, N].

    A part is PART columns, a multiple of COLUMNS.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    x_ptr += first_row * K
    out_ptr += (tl.program_id(1).to(tl.int64) * rows + first_row) * N
    rows -= tl.program_id(0) * ROWS  # from here on: of x and out as they now begin
    m = tl.arange(0, ROWS)
    n = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    weight_ptr += n.to(tl.int64)[:, None] * K + column[None, :]
    x_ptr += m[None, :] * K + column[:, None]
    first = tl.program_id(1) * PART
    acc = tl.zeros((FEATURES, ROWS), tl.float32)
    for k in tl.range(first, tl.minimum(first + PART, K), COLUMNS, num_stages=STAGES):
        inside = k + column < K
        w = tl.load(weight_ptr + k, mask=(n < N)[:, None] & inside[None, :], other=0.0)
        x = tl.load(x_ptr + k, mask=(m < rows)[None, :] & inside[:, None], other=0.0)
        acc = tl.dot(w, x, acc)
    out = out_ptr + m[None, :] * N + n[:, None]
    live = (m < rows)[None, :] & (n < N)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=live)


def launch(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    """The product as calls of the kernel: arguments and result as for `op.dense_small_m`.

    One for each kind of tile that the rows may take. An empty grid is not launched, neither by
    Triton nor by what torch compiles.
    """
    features, columns = weight.shape
    x = x.contiguous()
    rows = math.prod(x.shape[:-1])
    dtype = x.dtype if splits == 1 else torch.float32
    out = x.new_empty((splits, *x.shape[:-1], features), dtype=dtype)
    part = triton.cdiv(triton.cdiv(columns, STEP), splits) * STEP
    for tile, number in numbers_of_tiles(rows, ROW_TILES):
        wrap_triton(dense_small_m_kernel)[(number, splits, triton.cdiv(features, tile.features))](
            x,
            weight,
            out,
            rows,
            N=features,
            K=columns,
            PART=part,
            ROWS=tile.rows,
            FEATURES=tile.features,
            COLUMNS=tile.columns,
            STAGES=tile.stages,
            num_warps=WARPS,
        )
    return out
