"""A dense linear for few rows on a GPU: a Triton kernel that reads a weight once per tile of rows.

A row's bits do not depend on the other rows: tensor cores add its columns in one order in tiles of
every width, and the split of K depends on the weight alone.

Importing this module needs triton. The operator of `op.py` imports it only to run on a GPU or to be
lowered for one.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.dense_gemm.tiling import DENSE_TILES, STEP, DenseTile
from eagle_aot.triton_kernels.row_tiling import tile_counts

WARPS = 4


@triton.jit
def dense_tile(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tile: tl.tensor,
    rows: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Write a tile of FEATURES outputs, out [rows, N]: the sum over columns `first` to `end` of
    x [rows, K] and weight [N, K], in one order for all sizes of tiles."""
    m = tl.arange(0, ROWS)
    n = tile * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    weight_ptr += n.to(tl.int64)[:, None] * K + column[None, :]
    x_ptr += m[None, :] * K + column[:, None]
    acc = tl.zeros((FEATURES, ROWS), tl.float32)
    for k in tl.range(first, end, COLUMNS, num_stages=STAGES):
        inside = k + column < K
        w = tl.load(weight_ptr + k, mask=(n < N)[:, None] & inside[None, :], other=0.0)
        x = tl.load(x_ptr + k, mask=(m < rows)[None, :] & inside[:, None], other=0.0)
        acc = tl.dot(w, x, acc)
    out = out_ptr + m[None, :] * N + n[:, None]
    live = (m < rows)[None, :] & (n < N)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=live)


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
    """Compute one part of K of one tile of outputs.

    x [rows, K], weight [N, K] -> out [splits, rows, N]. A part has PART columns, a multiple of
    COLUMNS.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    x_ptr += first_row * K
    out_ptr += (tl.program_id(1).to(tl.int64) * rows + first_row) * N
    rows -= tl.program_id(0) * ROWS  # counted from the new starts of x and out
    first = tl.program_id(1) * PART
    end = tl.minimum(first + PART, K)
    dense_tile(x_ptr, weight_ptr, out_ptr, tl.program_id(2), rows, first, end,
               N, K, ROWS, FEATURES, COLUMNS, STAGES)  # fmt: skip


def launch(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.dense_small_m`, [splits, ..., N].

    There is one call per tile size that may be needed. Neither Triton nor torch's compiled code
    launches an empty grid.
    """
    x = x.contiguous()
    dtype = x.dtype if splits == 1 else torch.float32
    out = x.new_empty((splits, *x.shape[:-1], weight.shape[0]), dtype=dtype)
    for tile, count in tile_counts(math.prod(x.shape[:-1]), DENSE_TILES):
        launch_tile(x, weight, out, splits, tile, count)
    return out


def launch_tile(
    x: Tensor, weight: Tensor, out: Tensor, splits: int, tile: DenseTile, count: int
) -> None:
    """Write out [splits, ..., N], all rows of x [..., K], by `count` tiles of this size."""
    features, columns = weight.shape
    wrap_triton(dense_small_m_kernel)[(count, splits, triton.cdiv(features, tile.features))](
        x,
        weight,
        out,
        math.prod(x.shape[:-1]),
        N=features,
        K=columns,
        PART=triton.cdiv(triton.cdiv(columns, STEP), splits) * STEP,
        ROWS=tile.rows,
        FEATURES=tile.features,
        COLUMNS=tile.columns,
        STAGES=tile.stages,
        num_warps=WARPS,
    )
