"""The experts' product for many rows on a GPU, such as a prompt's.

Assignments are sorted by expert (`order.py`), and each expert's are cut into tiles. A grid has as
many tiles as any routes may need; each finds its expert in the counts. Importing this module needs
triton.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.int4_experts.op import new_result
from eagle_aot.triton_kernels.int4_experts.tile import blocks_of, constants_of, multiply_tile
from eagle_aot.triton_kernels.int4_experts.tiling import FewRowsTile, many_rows_tile


@triton.jit(do_not_specialize=["rows"])
def int4_experts_many_kernel(
    x_ptr: tl.tensor,
    order_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    EXPERTS: tl.constexpr,
    MOST: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
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
    """Compute a tile of outputs for up to WIDTH assignments of one expert.

    MOST is a power of two, EXPERTS or more.
    """
    index = tl.arange(0, MOST)
    start = tl.load(starts_ptr + index, mask=index < EXPERTS, other=0)
    end = tl.load(starts_ptr + index + 1, mask=index < EXPERTS, other=0)
    tiles = (end - start + WIDTH - 1) // WIDTH
    before = tl.cumsum(tiles, 0) - tiles
    slot = tl.program_id(1)
    mine = (before <= slot) & (slot < before + tiles)  # of one expert, or of none
    if tl.sum(mine.to(tl.int32), 0) > 0:
        expert = tl.sum(tl.where(mine, index, 0), 0)
        first = tl.sum(tl.where(mine, start + (slot - before) * WIDTH, 0), 0)
        place = first + tl.arange(0, WIDTH)
        live = place < tl.sum(tl.where(mine, end, 0), 0)
        assignment = tl.load(order_ptr + place, mask=live, other=0)
        multiply_tile(x_ptr, codes_ptr, scales_ptr, zeros_ptr, factors_ptr, out_ptr, expert,
                      tl.program_id(0), assignment, live, rows,
                      N, K, TOP_K, GROUP, BLOCKS, TOTAL, STAGES, ZEROS, FACTORS, ACTIVATION,
                      PTX, PAIRS, WHOLE, OUTPUTS)  # fmt: skip


def launch(
    x: Tensor,
    ids: Tensor,
    order: Tensor,
    starts: Tensor,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
    other_tile: FewRowsTile | None = None,
) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.int4_experts_many`, [..., N].

    `other_tile` replaces the tile that the weight's group has, for comparisons.
    """
    tile = other_tile or many_rows_tile(blocks_of(codes, scales))
    (rows, top_k), experts = ids.shape, codes.shape[0]
    out = new_result(x, ids, factors, features, activation)
    x = x.contiguous()
    slots = (rows * top_k + tile.width - 1) // tile.width + experts
    wrap_triton(int4_experts_many_kernel)[(codes.shape[1] * tile.parts, slots)](
        x,
        order,
        starts,
        codes,
        scales,
        scales if zeros is None else zeros,
        x if factors is None else factors.contiguous(),
        out,
        rows,
        EXPERTS=experts,
        MOST=triton.next_power_of_2(experts),
        WIDTH=tile.width,
        **constants_of(x, top_k, factors, codes, scales, zeros, features, activation, tile),
    )
    return out
