"""The most likely tokens of a vocabulary on a GPU; each logit is read once.

A logit and its column are packed into one integer, which orders by logit and, for equal logits, by
descending column, so sorting integers sorts both. Importing this module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels.process_logits.integers import ordered

BLOCK = 512
NONE = -(1 << 63)
"""Less than the integer of any logit."""


@triton.jit
def pack_logits(logits: tl.tensor, column: tl.tensor) -> tl.tensor:
    """Pack logits and columns [BLOCK] as int64, the order of the logits in the high half."""
    return (ordered(logits).to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def topk_blocks_kernel(
    logits_ptr: tl.tensor,
    best_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    vocab: int,
    BLOCK: tl.constexpr,
    TOPK: tl.constexpr,
    NONE: tl.constexpr,
) -> None:
    """Find the TOPK largest of a block of a row, and the block's softmax sum.

    The sum is relative to the block's maximum.
    """
    row, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    at = row.to(tl.int64) * vocab + column
    logits = tl.load(logits_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
    largest = tl.max(logits, axis=0)
    weights = tl.where(logits > float("-inf"), tl.exp(logits - largest), 0.0)
    index = row * blocks + block
    tl.store(sums_ptr + index, tl.sum(weights, axis=0))
    best = tl.topk(tl.where(inside, pack_logits(logits, column), NONE), TOPK)
    tl.store(best_ptr + index * TOPK + tl.arange(0, TOPK), best)


@triton.jit
def unpack_logits(integers: tl.tensor) -> tl.tensor:
    """Return the logits, float32, that `pack_logits` packed, in the same shape."""
    order = (integers >> 32).to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def topk_merge_kernel(
    best_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    scores_ptr: tl.tensor,
    columns_ptr: tl.tensor,
    blocks: int,
    k: int,
    BLOCKS: tl.constexpr,
    TOPK: tl.constexpr,
    NONE: tl.constexpr,
) -> None:
    """Merge the results of all blocks of a row."""
    row = tl.program_id(0)
    entry = tl.arange(0, BLOCKS * TOPK)
    at = row * blocks * TOPK + entry
    best = tl.topk(tl.load(best_ptr + at, mask=entry < blocks * TOPK, other=NONE), TOPK)
    rank = tl.arange(0, TOPK)
    logits = unpack_logits(best)
    block = tl.arange(0, BLOCKS)
    sums = tl.load(sums_ptr + row * blocks + block, mask=block < blocks, other=0.0)
    first = (row * blocks + block) * TOPK
    largest = unpack_logits(tl.load(best_ptr + first, mask=block < blocks, other=NONE))
    overall = tl.max(logits, axis=0)
    total = tl.sum(tl.where(sums > 0.0, sums * tl.exp(largest - overall), 0.0), axis=0)
    scores = logits - overall - tl.log(total)
    tl.store(scores_ptr + row * k + rank, scores, mask=rank < k)
    columns = 0x7FFFFFFF - (best & 0xFFFFFFFF)
    tl.store(columns_ptr + row * k + rank, columns, mask=rank < k)


def launch(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Launch both kernels: return log probabilities and columns [R, k] of `logits` float [R, V]."""
    rows, vocab = logits.shape
    assert 1 <= k <= min(vocab, BLOCK)
    blocks, topk = triton.cdiv(vocab, BLOCK), triton.next_power_of_2(max(k, 2))  # topk needs 2
    best = torch.empty(rows, blocks, topk, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    scores = torch.empty(rows, k, dtype=torch.float32, device=logits.device)
    columns = torch.empty(rows, k, dtype=torch.int64, device=logits.device)
    topk_blocks_kernel[(rows, blocks)](
        logits.contiguous(), best, sums, vocab, BLOCK=BLOCK, TOPK=topk, NONE=NONE, num_warps=4
    )
    merged = triton.next_power_of_2(blocks)
    topk_merge_kernel[(rows,)](
        best,
        sums,
        scores,
        columns,
        blocks,
        k,
        BLOCKS=merged,
        TOPK=topk,
        NONE=NONE,
        num_warps=4 if merged * topk <= BLOCK else 8,
    )
    return scores, columns
