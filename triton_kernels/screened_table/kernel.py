"""Logits of an output table; few of its tiles are computed, those that may hold a largest one.

The first of three kernels writes x as two digits of INT8 each, and the norms of x and of what they
lack of it. The second multiplies the digits by the INT8 copy of the table. By Cauchy-Schwarz the
norms bound each logit's error, and a row's largest lower bound is what its largest logit reaches.
The third computes the tiles whose upper bounds reach that, as `dense_small_m_kernel` does.

Every logit that equals a row's largest is therefore that of the dense product, and so is the first
of them. Float sums of up to 20,000 columns have errors of their own, below `ROUNDING` times the
norms of their factors: tensor cores truncate each sum of 16 products to 23 bits or more.

Importing this module needs triton.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.dense_gemm.kernel import WARPS, dense_tile, launch_tile
from eagle_aot.triton_kernels.dense_gemm.tiling import DENSE_TILES, DenseTile
from eagle_aot.triton_kernels.row_tiling import tile_counts
from eagle_aot.triton_kernels.screened_table import screen
from eagle_aot.triton_kernels.screened_table.packing import BOUNDS, GROUP, ScreenCopy

STAGES = 3
"""Steps of the INT8 product in flight, measured on an H200."""

DIGIT, ROUNDING, SATURATED = map(tl.constexpr, BOUNDS.values())


@triton.jit
def digits_kernel(
    x_ptr: tl.tensor,
    digits_ptr: tl.tensor,
    norms_ptr: tl.tensor,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write a row of x [rows, K] as digits int8 [2 ROWS, PADDED], the first ones first.

    The rows of norms float32 [5, ROWS] are the digits' scale, the norms of x and of what the digits
    lack of it, and minus infinity: the start of the largest lower bound. The last row is 0, where
    counting begins in a kernel whose programs claim their work.
    """
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + row * K + column, mask=column < K, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0) / 127.0, 2.0**-100)
    high = tl.floor(x / scale + 0.5)
    low = tl.floor((x - high * scale) / scale * DIGIT + 0.5)
    lacking = x - high * scale - low * (scale / DIGIT)
    tl.store(digits_ptr + row * PADDED + column, high.to(tl.int8), mask=column < PADDED)
    tl.store(digits_ptr + (ROWS + row) * PADDED + column, low.to(tl.int8), mask=column < PADDED)
    tl.store(norms_ptr + row, scale)
    tl.store(norms_ptr + ROWS + row, tl.sqrt(tl.sum(x * x, 0)))
    tl.store(norms_ptr + 2 * ROWS + row, tl.sqrt(tl.sum(lacking * lacking, 0)))
    tl.store(norms_ptr + 3 * ROWS + row, float("-inf"))
    tl.store(norms_ptr + 4 * ROWS + tl.arange(0, ROWS), 0.0, mask=row == 0)


@triton.jit(do_not_specialize=["rows"])
def screen_kernel(
    digits_ptr: tl.tensor,
    values_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    errors_ptr: tl.tensor,
    copies_ptr: tl.tensor,
    norms_ptr: tl.tensor,
    largest_only_ptr: tl.tensor,
    uppers_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Write approximate logits of a tile of FEATURES outputs, out [rows, N], and each row's largest
    upper bound there, uppers float32 [tiles, ROWS]; raise the row's largest lower bound.

    All logits may be read unless `largest_only_ptr` holds 1: then nothing is written.
    """
    if tl.load(largest_only_ptr) == 0:
        return
    n = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    m = tl.arange(0, 2 * ROWS)
    column = tl.arange(0, GROUP)
    values_ptr += n.to(tl.int64)[:, None] * PADDED + column[None, :]
    digits_ptr += m[None, :] * PADDED + column[:, None]
    acc = tl.zeros((FEATURES, 2 * ROWS), tl.float32)
    for k in tl.range(0, PADDED, GROUP, num_stages=STAGES):
        values = tl.load(values_ptr + k, mask=(n < N)[:, None], other=0)
        digits = tl.load(digits_ptr + k)
        scale = tl.load(scales_ptr + n * (PADDED // GROUP) + k // GROUP, mask=n < N, other=0.0)
        part = tl.dot(values, digits, out_dtype=tl.int32)
        acc += part.to(tl.float32) * scale.to(tl.float32)[:, None]
    row = tl.arange(0, ROWS)
    high, low = tl.split(tl.permute(tl.reshape(acc, (FEATURES, 2, ROWS)), (0, 2, 1)))
    scale = tl.load(norms_ptr + row)[None, :]
    approximate = high * scale + low * (scale / DIGIT)
    norm = tl.load(norms_ptr + ROWS + row)[None, :]
    lacking = tl.load(norms_ptr + 2 * ROWS + row)[None, :]
    error = tl.load(errors_ptr + n, mask=n < N, other=0.0)[:, None]
    copied = tl.load(copies_ptr + n, mask=n < N, other=0.0)[:, None]
    bound = norm * (error + ROUNDING * (copied + error)) + lacking * copied
    live = (row < rows)[None, :] & (n < N)[:, None]
    lower = tl.max(tl.where(live, approximate - bound, float("-inf")), 0)
    upper = tl.max(tl.where(live, approximate + bound, float("-inf")), 0)
    tl.atomic_max(norms_ptr + 3 * ROWS + row, lower, mask=row < rows)
    tl.store(uppers_ptr + tl.program_id(0) * ROWS + row, upper)
    out = out_ptr + row[None, :] * N + n[:, None]
    tl.store(out, approximate.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows"])
def rescore_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    norms_ptr: tl.tensor,
    largest_only_ptr: tl.tensor,
    uppers_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Compute a tile of out [rows, N] if it may hold a row's largest logit, or all may be read."""
    m = tl.arange(0, ROWS)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    reached = tl.load(norms_ptr + 3 * ROWS + m).to(dtype)
    upper = tl.load(uppers_ptr + tl.program_id(0) * ROWS + m)
    may = (upper.to(dtype).to(tl.float32) >= reached.to(tl.float32)) | (upper > SATURATED)
    reaching = tl.max((may & (m < rows)).to(tl.int32), 0)
    if (reaching == 0) & (tl.load(largest_only_ptr) != 0):
        return
    dense_tile(x_ptr, weight_ptr, out_ptr, tl.program_id(0), rows, 0, K,
               N, K, ROWS, FEATURES, COLUMNS, STAGES)  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def whole_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    largest_only_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Compute a tile of out [rows, N] if all logits may be read."""
    if tl.load(largest_only_ptr) == 0:
        dense_tile(x_ptr, weight_ptr, out_ptr, tl.program_id(0), rows, 0, K,
                   N, K, ROWS, FEATURES, COLUMNS, STAGES)  # fmt: skip


def launch(x: Tensor, weight: Tensor, copy: ScreenCopy, largest_only: Tensor) -> Tensor:
    """Launch the kernels; arguments and result are those of `op.screened_logits`, [..., N].

    Rows beyond the smallest tile of the dense product are multiplied by it.
    """
    x = x.contiguous()
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    for tile, count in tile_counts(math.prod(x.shape[:-1]), DENSE_TILES):
        if tile is DENSE_TILES[0]:
            _launch_screened(x, weight, copy, largest_only, out, tile, count)
        else:
            launch_tile(x, weight, out, 1, tile, count)
    return out


def _launch_screened(
    x: Tensor,
    weight: Tensor,
    copy: ScreenCopy,
    largest_only: Tensor,
    out: Tensor,
    tile: DenseTile,
    count: int,
) -> None:
    """Launch the three kernels for at most `tile.rows` rows, or nothing if `count` is 0.

    Within `compiled_from_cuda` the second and third are of CUDA C++ where they can be; another one
    computes all logits where these may be read, faster than the third would.
    """
    (features, columns), padded = weight.shape, copy.values.shape[1]
    rows, tiles = math.prod(x.shape[:-1]), triton.cdiv(features, tile.features)
    digits = x.new_empty((2 * tile.rows, padded), dtype=torch.int8)
    norms = x.new_empty((5, tile.rows), dtype=torch.float32)
    wrap_triton(digits_kernel)[(count * rows,)](
        *(x, digits, norms),
        K=columns,
        PADDED=padded,
        WIDTH=triton.next_power_of_2(padded),
        ROWS=tile.rows,
        num_warps=2 * WARPS,
    )
    sizes = {"N": features, "ROWS": tile.rows, "FEATURES": tile.features, "num_warps": WARPS}
    dense = {"K": columns, "COLUMNS": tile.columns, "STAGES": tile.stages}
    if screen.is_served(weight):
        screen.launch(x, weight, copy, digits, norms, largest_only, out, count)
        wrap_triton(whole_kernel)[(count * tiles,)](
            *(x, weight, largest_only, out, rows), **sizes, **dense
        )
        return
    uppers = x.new_empty((tiles, tile.rows), dtype=torch.float32)
    wrap_triton(screen_kernel)[(count * tiles,)](
        *(digits, copy.values, copy.scales, copy.errors, copy.norms),
        *(norms, largest_only, uppers, out, rows),
        **sizes,
        PADDED=padded,
        GROUP=GROUP,
        STAGES=STAGES,
    )
    wrap_triton(rescore_kernel)[(count * tiles,)](
        *(x, weight, norms, largest_only, uppers, out, rows), **sizes, **dense
    )
