"""One tile of an expert's product, which the kernels for few and for many rows share.

The arithmetic is that of `int4_gemm/small_m.py`: tensor cores add up a block of 128 columns, from
zero, and blocks are added in float32, in one order. A column of a tile is an assignment; its result
depends on that column and on the weight, so its bits are the same in any tile and in both kernels.
Importing this module needs triton.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels import device
from eagle_aot.triton_kernels.int4_experts.tiling import FewRowsTile
from eagle_aot.triton_kernels.int4_gemm.fragments import (
    activated,
    columns,
    dense,
    operand,
    quarters,
    whole,
)
from eagle_aot.triton_kernels.int4_gemm.packing import blocks_per_step, group_of
from eagle_aot.triton_kernels.int4_gemm.small_m import added, loaded


@triton.jit
def add_expert_block(
    acc: tl.tensor,
    words: tl.tensor,
    scales: tl.tuple,
    zeros: tl.tuple,
    x_ptr: tl.tensor,
    source: tl.tensor,
    sources: tl.tensor,
    k: tl.tensor,
    K: tl.constexpr,
    ZEROS: tl.constexpr,
    PTX: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """Add the product of a block of columns from `k` on to acc [n, m]; `source` [m] are rows of x
    below `sources`, others count as zero."""
    part = tl.zeros_like(acc)
    for i in tl.static_range(1 if WHOLE else 4):
        if WHOLE:
            weight = whole(words, scales, zeros, ZEROS, PTX)
        else:
            weight = dense(words, scales[i], zeros[i], i, ZEROS, PTX)
        column = k + 32 * i + tl.arange(0, weight.shape[1])
        part = tl.dot(weight, columns(x_ptr, source, sources, column, K), part)
    return added(acc, part, PTX)


@triton.jit
def store_tile(
    acc: tl.tensor,
    factors_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tile: tl.tensor,
    assignment: tl.tensor,
    live: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    FACTORS: tl.constexpr,
    ACTIVATION: tl.constexpr,
) -> None:
    """Write outputs acc [n, m], of number `tile`, after the activation or times the factors."""
    if ACTIVATION != "":
        acc = activated(acc, ACTIVATION)
    WIDTH: tl.constexpr = N if ACTIVATION == "" else N // 2
    n = tile * acc.shape[0] + tl.arange(0, acc.shape[0])
    place = assignment
    if FACTORS:
        place = (assignment % TOP_K) * rows + assignment // TOP_K
        acc *= tl.load(factors_ptr + assignment, mask=live, other=0.0)[None, :]
    out = out_ptr + place.to(tl.int64)[None, :] * WIDTH + n[:, None]
    inside = live[None, :] & (n < WIDTH)[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def multiply_tile(
    x_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    out_ptr: tl.tensor,
    expert: tl.tensor,
    tile: tl.tensor,
    assignment: tl.tensor,
    live: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    TOTAL: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    FACTORS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PTX: tl.constexpr,
    PAIRS: tl.constexpr,
    WHOLE: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> None:
    """Compute OUTPUTS outputs, of number `tile`, of an expert for the assignments [m] that are
    `live`. OUTPUTS are 128, a tile of the packed weight, or 64, half of one.

    Without FACTORS x has a row for each of the `rows`, and the result one for each assignment; with
    them x has one for each assignment, and the result [TOP_K, rows, N] is multiplied by them.
    """
    GROUPS: tl.constexpr = BLOCKS * 128 // GROUP
    TILES: tl.constexpr = (N + 127) // 128
    PARTS: tl.constexpr = 128 // OUTPUTS
    part = tile % PARTS
    word = tl.arange(0, 4096 // PARTS)[None, :]  # of both halves of a block's words
    word = word // (2048 // PARTS) * 2048 + part * (2048 // PARTS) + word % (2048 // PARTS)
    sources = rows * (TOP_K if FACTORS else 1)
    source = tl.where(live, assignment // (1 if FACTORS else TOP_K), sources)
    first = (expert.to(tl.int64) * TILES + tile // PARTS) * TOTAL
    acc = tl.zeros((OUTPUTS, assignment.shape[0]), tl.float32)
    for step in tl.range(0, TOTAL, num_stages=STAGES):
        index = first + step
        value = (index * PARTS + part) * (OUTPUTS * GROUPS)
        scales = loaded(scales_ptr, value, GROUPS, PAIRS, OUTPUTS)
        zeros = scales
        if ZEROS:
            zeros = loaded(zeros_ptr, value, GROUPS, PAIRS, OUTPUTS)
        for block in tl.static_range(BLOCKS):
            s, z = quarters(scales, block, BLOCKS), quarters(zeros, block, BLOCKS)
            words = operand(tl.load(codes_ptr + (index * BLOCKS + block) * 4096 + word))
            k = (step * BLOCKS + block) * 128
            acc = add_expert_block(acc, words, s, z, x_ptr, source, sources, k,
                                   K, ZEROS, PTX, WHOLE)  # fmt: skip
    store_tile(acc, factors_ptr, out_ptr, tile, assignment, live, rows,
               N, TOP_K, FACTORS, ACTIVATION)  # fmt: skip


def blocks_of(codes: Tensor, scales: Tensor) -> int:
    """Return the blocks of a step of a packed stack, codes [E, N tiles, K blocks, 4096]."""
    return blocks_per_step(group_of(codes[0], scales[0]))


def constants_of(
    x: Tensor,
    top_k: int,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
    tile: FewRowsTile,
) -> dict[str, Any]:
    """Return the constants of `multiply_tile` for x [..., K] and a packed stack, and the options
    of its compiler."""
    return {
        "N": features,
        "K": x.shape[-1],
        "TOP_K": top_k,
        "GROUP": group_of(codes[0], scales[0]),
        "BLOCKS": blocks_of(codes, scales),
        "TOTAL": scales.shape[2],
        "STAGES": tile.stages,
        "ZEROS": zeros is not None,
        "FACTORS": factors is not None,
        "ACTIVATION": activation,
        "PTX": 0 if triton.knobs.runtime.interpret else device.capability()[0],
        "PAIRS": tile.pairs,
        "WHOLE": tile.whole,
        "OUTPUTS": tile.outputs,
        "num_warps": tile.warps,
    }
