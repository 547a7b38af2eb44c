"""The experts' product for few rows on a GPU: each expert that any row takes is read once.

Routes are read on the device, so one recorded graph serves all of them. A grid has a slot for each
assignment, or one for each expert if these are fewer. The slot of the first assignment of an
expert computes it for all rows that take it, in tiles whose second and later ones find the weight
in the L2 cache; other slots end at once. Importing this module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.int4_experts.op import new_result
from eagle_aot.triton_kernels.int4_experts.tile import blocks_of, constants_of, multiply_tile
from eagle_aot.triton_kernels.int4_experts.tiling import FEW_ROWS_TILES, FewRowsTile
from eagle_aot.triton_kernels.row_tiling import tile_counts


@triton.jit(do_not_specialize=["rows"])
def int4_experts_few_kernel(
    x_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    EXPERTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
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
    """Compute a tile of outputs of the expert of one slot, for all of the `rows` that take it.

    There are at most ROWS of them. If a tile has as many columns, each row has its own; otherwise
    rows that take the expert are gathered in tiles of WIDTH. RANKS is a power of two, TOP_K or
    more.
    """
    slot = tl.program_id(1)
    row, rank = tl.arange(0, ROWS), tl.arange(0, RANKS)
    number = row[:, None] * TOP_K + rank[None, :]
    inside = (row < rows)[:, None] & (rank < TOP_K)[None, :]
    ids = tl.load(ids_ptr + number, mask=inside, other=-1).to(tl.int32)
    every = rows * TOP_K > EXPERTS  # a slot for each expert, not for each assignment
    expert = slot
    if not every:
        expert = tl.load(ids_ptr + slot).to(tl.int32)
    mine = (ids == expert).to(tl.int32)
    takes = tl.sum(mine, 1)  # 0 or 1: a row's experts differ
    assignment = tl.sum(mine * number, 1)
    first = tl.min(tl.where(takes > 0, assignment, ROWS * TOP_K), 0)
    begins = first == slot
    if every:
        begins = first < ROWS * TOP_K
    if begins:
        if ROWS == WIDTH:
            multiply_tile(x_ptr, codes_ptr, scales_ptr, zeros_ptr, factors_ptr, out_ptr, expert,
                          tl.program_id(0), assignment, takes > 0, rows,
                          N, K, TOP_K, GROUP, BLOCKS, TOTAL, STAGES, ZEROS, FACTORS, ACTIVATION,
                          PTX, PAIRS, WHOLE, OUTPUTS)  # fmt: skip
        else:
            place, count = tl.cumsum(takes, 0) - 1, tl.sum(takes, 0)
            for done in tl.range(0, count, WIDTH, num_stages=1):
                column = done + tl.arange(0, WIDTH)
                here = (takes > 0)[None, :] & (place[None, :] == column[:, None])
                chosen = tl.sum(tl.where(here, assignment[None, :], 0), 1)
                multiply_tile(x_ptr, codes_ptr, scales_ptr, zeros_ptr, factors_ptr, out_ptr, expert,
                              tl.program_id(0), chosen, column < count, rows,
                              N, K, TOP_K, GROUP, BLOCKS, TOTAL, STAGES, ZEROS, FACTORS, ACTIVATION,
                              PTX, PAIRS, WHOLE, OUTPUTS)  # fmt: skip


def launch(
    x: Tensor,
    ids: Tensor,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
    other_tile: FewRowsTile | None = None,
) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.int4_experts_few`, [..., N].

    There is one call per tile size that may be needed. `other_tile` replaces them, for comparisons.
    """
    (rows, top_k), experts = ids.shape, codes.shape[0]
    out = new_result(x, ids, factors, features, activation)
    x, ids = x.contiguous(), ids.contiguous()
    tiles = FEW_ROWS_TILES[blocks_of(codes, scales)] if other_tile is None else (other_tile,)
    for tile, count in tile_counts(rows, tiles):
        slots = count * torch.sym_min(experts, rows * top_k)
        wrap_triton(int4_experts_few_kernel)[(codes.shape[1] * tile.parts, slots)](
            x,
            ids,
            codes,
            scales,
            scales if zeros is None else zeros,
            x if factors is None else factors.contiguous(),
            out,
            rows,
            EXPERTS=experts,
            RANKS=triton.next_power_of_2(top_k),
            ROWS=tile.rows,
            WIDTH=tile.width,
            **constants_of(x, top_k, factors, codes, scales, zeros, features, activation, tile),
        )
    return out
