"""The INT4 linear for many rows on a GPU: weights are unpacked on their way to the tensor cores.

No dense copy of a weight is written to memory. The weight is that of `reference.dequantise_int4`,
rounded to bfloat16. Importing this module needs triton.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.device import capability
from eagle_aot.triton_kernels.int4_gemm.fragments import (
    activated,
    columns,
    operand,
    per_row_of_group,
    per_row_pairs,
    quarters,
    whole,
)
from eagle_aot.triton_kernels.int4_gemm.packing import blocks_per_step, group_of
from eagle_aot.triton_kernels.int4_gemm.tiling import LargeMTile, large_m_tile


@triton.jit(do_not_specialize=["rows"])
def int4_large_m_kernel(
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
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PTX: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BY_BLOCK: tl.constexpr,
) -> None:
    """Multiply x [rows, K]: out [rows, N], or [rows, N / 2] with an activation."""
    GROUPS: tl.constexpr = BLOCKS * 128 // GROUP
    last: tl.constexpr = (N + 127) // 128 - 1
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    word = tl.arange(0, 4096)[None, :]
    tiles = tl.minimum(tl.program_id(1) * TILES + tl.arange(0, TILES), last)
    tile = tiles.to(tl.int64)[:, None] * TOTAL
    acc = tl.zeros((TILES * 128, BLOCK_M), tl.float32)
    for at in tl.range(0, TOTAL * BLOCKS if BY_BLOCK else 0, num_stages=STAGES):
        first = (tile + at // BLOCKS) * (128 * GROUPS)
        scale = per_row_of_group(scales_ptr, first, at % BLOCKS, GROUPS)
        zero = scale
        if ZEROS:
            zero = per_row_of_group(zeros_ptr, first, at % BLOCKS, GROUPS)
        words = tl.load(codes_ptr + (tile * BLOCKS + at) * 4096 + word)
        k = at * 128 + tl.arange(0, 128)
        s, z = (scale, scale, scale, scale), (zero, zero, zero, zero)
        weight = whole(operand(words), s, z, ZEROS, PTX)
        acc = tl.dot(weight, columns(x_ptr, m, rows, k, K), acc)
    for step in tl.range(0, 0 if BY_BLOCK else TOTAL, num_stages=STAGES):
        index = tile + step
        scales = per_row_pairs(scales_ptr, index * (128 * GROUPS), GROUPS)
        zeros = scales
        if ZEROS:
            zeros = per_row_pairs(zeros_ptr, index * (128 * GROUPS), GROUPS)
        for block in tl.static_range(BLOCKS):
            words = tl.load(codes_ptr + (index * BLOCKS + block) * 4096 + word)
            k = (step * BLOCKS + block) * 128 + tl.arange(0, 128)
            s, z = quarters(scales, block, BLOCKS), quarters(zeros, block, BLOCKS)
            weight = whole(operand(words), s, z, ZEROS, PTX)
            acc = tl.dot(weight, columns(x_ptr, m, rows, k, K), acc)
    WIDTH: tl.constexpr = N if ACTIVATION == "" else N // 2
    SIZE: tl.constexpr = TILES * 128 if ACTIVATION == "" else TILES * 64
    if ACTIVATION != "":
        acc = activated(acc, ACTIVATION)
    n = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    out = out_ptr + m[None, :] * WIDTH + n[:, None]
    live = (m < rows)[None, :] & (n < WIDTH)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=live)


def launch(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
    other_tile: LargeMTile | None = None,
) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.int4_large_m`, [..., M, N].

    `other_tile` replaces the tile that the weight's group has, for comparisons.
    """
    group = group_of(codes, scales)
    blocks = blocks_per_step(group)
    rows, tile = x.shape[-2], other_tile or large_m_tile(blocks)
    out = x.new_empty((*x.shape[:-1], features // 2 if activation else features))
    wrap_triton(int4_large_m_kernel)[
        (triton.cdiv(rows, tile.rows), triton.cdiv(codes.shape[0], tile.tiles))
    ](
        x.contiguous(),
        codes,
        scales,
        scales if zeros is None else zeros,
        out,
        rows,
        N=features,
        K=x.shape[-1],
        GROUP=group,
        BLOCKS=blocks,
        TOTAL=scales.shape[1],
        STAGES=tile.stages,
        ZEROS=zeros is not None,
        ACTIVATION=activation,
        PTX=0 if triton.knobs.runtime.interpret else capability()[0],
        TILES=tile.tiles,
        BLOCK_M=tile.rows,
        BY_BLOCK=tile.by_block,
        num_warps=tile.warps,
    )
    return out
