"""What followed the last tokens of a text at their latest earlier occurrence, as two GPU kernels.

PyTorch's operators take 18, of 2 to 3 us each. Importing this module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""Positions that a program compares."""


@triton.jit(do_not_specialize=["columns"])
def matches_kernel(
    tokens_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    last_ptr: tl.tensor,
    best_ptr: tl.tensor,
    columns: tl.tensor,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the best of BLOCK positions before a text's last one, best int32 [B, blocks].

    Positions are numbered by the length of the match that ends there, then by themselves.
    """
    text, block = tl.program_id(0), tl.program_id(1)
    tokens_ptr += tl.load(sequences_ptr + text) * columns
    last = tl.maximum(tl.load(last_ptr + text), 1).to(tl.int32)
    end = block * BLOCK + tl.arange(0, BLOCK)
    length = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(LONGEST):
        token = tl.load(tokens_ptr + end + i, mask=end < last, other=0)
        length = tl.where(token == tl.load(tokens_ptr + last + i), length + 1, 0)
    number = tl.where(end < last, end + length * (columns - LONGEST + 1), 0)
    tl.store(best_ptr + text * tl.num_programs(1) + block, tl.max(number, 0))


@triton.jit(do_not_specialize=["columns", "blocks"])
def continuations_kernel(
    tokens_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    last_ptr: tl.tensor,
    best_ptr: tl.tensor,
    out_ptr: tl.tensor,
    columns: tl.tensor,
    blocks: tl.tensor,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    LONGEST: tl.constexpr,
) -> None:
    """Write what followed the best position of a text: COUNT of WIDTH tokens of out [B, COUNT]."""
    text = tl.program_id(0)
    tokens_ptr += tl.load(sequences_ptr + text) * columns
    last = tl.maximum(tl.load(last_ptr + text), 1).to(tl.int32)
    block = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + text * blocks + block, mask=block < blocks, other=0)
    earlier = tl.max(best, 0) % (columns - LONGEST + 1)
    offset = tl.arange(0, WIDTH)
    followed = tokens_ptr + LONGEST + earlier + offset % (last - earlier)
    token = tl.load(followed, mask=offset < COUNT, other=0)
    tl.store(out_ptr + text * COUNT + offset, token, mask=offset < COUNT)


def launch(tokens: Tensor, sequences: Tensor, last: Tensor, count: int, longest: int) -> Tensor:
    """Launch both kernels: return what followed the latest longest match of the last `longest`
    tokens, int64 [B, count].

    Row `sequences[b]` of `tokens` int64 [S, columns] is known up to the position `last[b]`, both
    int64 [B], whose token is in column `last[b]` + `longest` - 1.
    """
    texts, columns = len(sequences), tokens.shape[1]
    assert tokens.is_contiguous() and (longest + 1) * columns < 1 << 31
    blocks = triton.cdiv(columns, BLOCK)
    best = tokens.new_empty((texts, blocks), dtype=torch.int32)
    out = tokens.new_empty((texts, count))
    matches_kernel[(texts, blocks)](
        tokens, sequences, last, best, columns, LONGEST=longest, BLOCK=BLOCK, num_warps=8
    )
    continuations_kernel[(texts,)](
        tokens,
        sequences,
        last,
        best,
        out,
        columns,
        blocks,
        COUNT=count,
        WIDTH=triton.next_power_of_2(count),
        BLOCKS=triton.next_power_of_2(blocks),
        LONGEST=longest,
        num_warps=1,
    )
    return out
