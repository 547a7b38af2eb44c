"""Assignments sorted by expert, on a GPU: a program for each expert, which reads all ids.

Importing this module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

BLOCK = 2048
WARPS = 8


@triton.jit(do_not_specialize=["assignments"])
def experts_order_kernel(
    ids_ptr: tl.tensor,
    order_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    assignments: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write the assignments of one expert, after those of all experts with lower numbers."""
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    lower = tl.zeros((BLOCK,), tl.int32)
    for first in tl.range(0, assignments, BLOCK):
        inside = first + at < assignments
        ids = tl.load(ids_ptr + first + at, mask=inside, other=0x7FFFFFFF)
        lower += (ids < expert).to(tl.int32)
    start = tl.sum(lower, 0)
    tl.store(starts_ptr + expert, start)
    for first in tl.range(0, assignments, BLOCK):
        inside = first + at < assignments
        ids = tl.load(ids_ptr + first + at, mask=inside, other=0x7FFFFFFF)
        mine = (ids == expert).to(tl.int32)
        place = start + tl.cumsum(mine, 0) - 1
        tl.store(order_ptr + place, first + at, mask=mine > 0)
        start += tl.sum(mine, 0)
    tl.store(starts_ptr + expert + 1, start, mask=expert == tl.num_programs(0) - 1)


def launch(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments and results are those of `op.experts_order`, [M k], [E + 1]."""
    assignments = ids.shape[0] * ids.shape[1]
    order = ids.new_empty((assignments,), dtype=torch.int32)
    starts = ids.new_empty((experts + 1,), dtype=torch.int32)
    wrap_triton(experts_order_kernel)[(experts,)](
        ids.contiguous(), order, starts, assignments, BLOCK=BLOCK, num_warps=WARPS
    )
    return order, starts
