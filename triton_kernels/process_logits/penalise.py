"""Masks tokens and applies biases and penalties, in one pass over the logits.

Importing this module needs triton. Products are not fused into sums, so that the bits are those of
the eager reference.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}


@triton.jit
def penalise_kernel(
    logits_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    paths_ptr: tl.tensor,
    bitmask_ptr: tl.tensor,
    biased_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    penalised_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    seen_ptr: tl.tensor,
    least_ptr: tl.tensor,
    stops_ptr: tl.tensor,
    out_ptr: tl.tensor,
    extremes_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PATH: tl.constexpr,
    MASK: tl.constexpr,
) -> None:
    """Process one block of one row; store its maximum and its least finite value."""
    row, block = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    sequence = tl.load(sequences_ptr + row)
    token = sequence * VOCAB + column
    at = row.to(tl.int64) * VOCAB + column
    x = tl.load(logits_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
    if MASK:
        byte = tl.load(bitmask_ptr + row * MASK + column // 8, mask=inside, other=0)
        x = tl.where((byte.to(tl.int32) >> (column % 8)) & 1 != 0, x, float("-inf"))
    if tl.load(biased_ptr + sequence):
        x += tl.load(bias_ptr + token, mask=inside, other=0.0)
    if tl.load(penalised_ptr + sequence):
        count = tl.load(counts_ptr + token, mask=inside, other=0)
        for step in range(PATH):
            count += (column == tl.load(paths_ptr + row * PATH + step)).to(tl.int32)
        seen = (tl.load(seen_ptr + token, mask=inside, other=0) != 0) | (count > 0)
        repetition = tl.load(penalties_ptr + sequence * 3)
        presence = tl.load(penalties_ptr + sequence * 3 + 1)
        frequency = tl.load(penalties_ptr + sequence * 3 + 2)
        repeated = tl.where(x < 0, x * repetition, tl.math.div_rn(x, repetition))
        x = tl.where(seen, repeated, x) - tl.where(count > 0, presence, 0.0)
        x -= frequency * count.to(tl.float32)
    if tl.load(positions_ptr + row) < tl.load(least_ptr + sequence):
        stops = tl.load(stops_ptr + token, mask=inside, other=0) != 0
        x = tl.where(stops, float("-inf"), x)
    tl.store(out_ptr + at, x, mask=inside)
    largest = tl.max(tl.where(inside, x, float("-inf")), axis=0)
    least = tl.min(tl.where(inside & (x > float("-inf")), x, float("inf")), axis=0)
    extremes_ptr += row * 2 * BLOCKS + block
    tl.store(extremes_ptr, largest)
    tl.store(extremes_ptr + BLOCKS, least)


def launch(
    logits: Tensor,
    sequences: Tensor,
    positions: Tensor,
    paths: Tensor | None,
    bitmask: Tensor | None,
    bias: tuple[Tensor, Tensor],
    penalties: tuple[Tensor, Tensor],
    texts: tuple[Tensor, Tensor],
    stops: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Process logits [R, V]; return them as float32 and the extremes of each block.

    The extremes float32 [R, 2, N] are the maximum and the least finite value, infinity if there is
    none. Rows belong to `sequences` int64 [R], choose the tokens at `positions` int64 [R], and have
    the draft tokens `paths` int64 [R, P] before them, -1 where there is none. They may choose only
    tokens that have a bit in `bitmask` uint8 [R, W], bit i % 8 of byte i // 8. For S sequences:

    - `bias`: whether each has one, bool [S], and the biases, float32 [S, V];
    - `penalties`: whether each has any, bool [S], and repetition, presence and frequency penalties,
      float32 [S, 3];
    - `texts`: how often each token was generated, int32 [S, V], and whether the prompt has it, bool
      [S, V];
    - `stops`: the position before which stop ids may not be chosen, int64 [S], and these ids, bool
      [S, V].
    """
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    out = logits.new_empty(rows, vocab, dtype=bias[1].dtype)
    extremes = out.new_empty(rows, 2, blocks)
    penalise_kernel[(rows, blocks)](
        logits.contiguous(),
        sequences.contiguous(),
        positions.contiguous(),
        sequences if paths is None else paths.contiguous(),
        sequences if bitmask is None else bitmask.contiguous(),
        *bias,
        *penalties,
        *texts,
        *stops,
        out,
        extremes,
        VOCAB=vocab,
        BLOCKS=blocks,
        BLOCK=BLOCK,
        PATH=0 if paths is None else paths.shape[1],
        MASK=0 if bitmask is None else bitmask.shape[1],
        **OPTIONS,
    )
    return out, extremes
