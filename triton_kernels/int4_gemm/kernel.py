"""The few-row INT4 linear on a GPU: a Triton kernel that reads each weight byte once.

Importing this module needs triton. Nothing does until the operator of `op.py` runs on a GPU or is
lowered for one.

A row's bits do not depend on the rows beside it. Rows are padded to one tile of 16 whatever their
number; tile shapes, the order in which groups are added and the split of K follow from the
weight's shape alone; the parts of a split are added by a second kernel in ascending order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

BLOCK_N = 64
"""Output features per program."""

MAX_HALF = 64
"""Bytes of a weight row per step, at most: twice as many columns."""

MIN_HALF = 16
"""The shortest inner dimension that `tl.dot` takes."""

PROGRAMS = 528
"""What a split of K aims at: four programs for each of an H100's 132 multiprocessors."""

MAX_SPLITS = 16

SUM_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a weight [N, K] in groups of g is walked; of its shape alone, never of the row count.

    A step takes `half` bytes of `BLOCK_N` weight rows, all of one group. `splits` programs share
    a block of rows and take `steps` consecutive steps each.
    """

    half: int
    steps: int
    splits: int


def tiling(n: int, k: int, group: int) -> Tiling:
    """The walk over a weight of `n` rows and `k` columns in groups of `group` (even) columns."""
    group_bytes = group // 2
    half = MAX_HALF
    while half > MIN_HALF and group_bytes % half:
        half //= 2
    total = k // group * triton.cdiv(group_bytes, half)
    wanted = max(1, min(MAX_SPLITS, total, PROGRAMS // triton.cdiv(n, BLOCK_N)))
    steps = triton.cdiv(total, wanted)
    return Tiling(half, steps, triton.cdiv(total, steps))


@triton.jit(do_not_specialize=["rows"])
def int4_small_m_kernel(
    x_ptr: tl.tensor,
    qdata_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    zero_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """One part of K of one block of outputs: x [rows, K] -> out [splits, rows, N].

    The even and the odd columns are multiplied apart, so that nibbles need no interleaving. The
    zero point leaves the codes before the product (exactly, where it is an integer), the scale
    enters after it, in float32.
    """
    group_bytes: tl.constexpr = GROUP // 2
    tiles: tl.constexpr = (group_bytes + HALF - 1) // HALF
    ragged: tl.constexpr = group_bytes % HALF != 0
    m = tl.arange(0, 16)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    byte = tl.arange(0, HALF)
    column = tl.arange(0, 2 * HALF)
    in_n = n < N
    first = tl.program_id(1) * STEPS
    row_bytes = n.to(tl.int64) * (K // 2)
    acc = tl.zeros((16, BLOCK_N), tl.float32)
    for step in range(first, tl.minimum(first + STEPS, K // GROUP * tiles)):
        group = step // tiles
        inside = step % tiles * HALF
        start = group * group_bytes + inside
        x_mask = (m < rows)[:, None]
        q_mask = in_n[:, None]
        if ragged:
            x_mask = x_mask & (2 * inside + column < GROUP)[None, :]
            q_mask = q_mask & (inside + byte < group_bytes)[None, :]
        x = tl.load(x_ptr + m[:, None] * K + 2 * start + column[None, :], mask=x_mask, other=0.0)
        even, odd = tl.split(tl.reshape(x, (16, HALF, 2)))
        q = tl.load(qdata_ptr + row_bytes[:, None] + start + byte[None, :], mask=q_mask, other=0)
        scale = tl.load(scale_ptr + group * N + n, mask=in_n, other=0.0).to(tl.float32)
        zero = tl.load(zero_ptr + group * N + n, mask=in_n, other=0.0).to(tl.float32)
        low = ((q & 0xF).to(tl.float32) - zero[:, None]).to(x.dtype)
        high = ((q >> 4).to(tl.float32) - zero[:, None]).to(x.dtype)
        part = tl.dot(even, tl.trans(low), input_precision="ieee")
        part = tl.dot(odd, tl.trans(high), part, input_precision="ieee")
        acc += part * scale[None, :]
    out = out_ptr + (tl.program_id(1) * rows + m[:, None]) * N + n[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(m < rows)[:, None] & in_n[None, :])


@triton.jit(do_not_specialize=["rows"])
def sum_splits_kernel(
    parts_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """parts float32 [SPLITS, rows, N] -> out [rows, N], added in ascending order."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        total += tl.load(parts_ptr + (split * rows + row) * N + n, mask=n < N, other=0.0)
    tl.store(out_ptr + row * N + n, total.to(out_ptr.dtype.element_ty), mask=n < N)


def launch(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """The product as a call of the kernels: arguments and result as for `op.int4_small_m`."""
    n, groups = qdata.shape[0], scale.shape[0]
    k = 2 * qdata.shape[1]
    rows = x.shape[-2]
    walk = tiling(n, k, k // groups)
    out = x.new_empty((*x.shape[:-1], n))
    parts = out if walk.splits == 1 else x.new_empty((walk.splits, rows, n), dtype=torch.float32)
    wrap_triton(int4_small_m_kernel)[(triton.cdiv(n, BLOCK_N), walk.splits)](
        x.contiguous(),
        qdata.contiguous(),
        scale.contiguous(),
        zero_point.contiguous(),
        parts,
        rows,
        N=n,
        K=k,
        GROUP=k // groups,
        HALF=walk.half,
        STEPS=walk.steps,
        BLOCK_N=BLOCK_N,
        num_warps=4,
        num_stages=4 if x.element_size() == 2 else 2,
    )
    if walk.splits > 1:
        wrap_triton(sum_splits_kernel)[(triton.cdiv(n, SUM_BLOCK), rows)](
            parts, out, rows, N=n, SPLITS=walk.splits, BLOCK=SUM_BLOCK
        )
    return out
