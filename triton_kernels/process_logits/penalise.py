"""Biases, penalties and what may not be chosen yet, in one pass over the logits.

Importing this module needs triton. No product is fused with a sum: the eager twin has the same
bits.
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
) -> None:
    """One block of one row, its largest, and its least that is finite."""
    row, block = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    sequence = tl.load(sequences_ptr + row)
    of_text = sequence * VOCAB + column
    at = row.to(tl.int64) * VOCAB + column
    x = tl.load(logits_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
    if tl.load(biased_ptr + sequence):
        x += tl.load(bias_ptr + of_text, mask=inside, other=0.0)
    if tl.load(penalised_ptr + sequence):
        count = tl.load(counts_ptr + of_text, mask=inside, other=0)
        for step in range(PATH):
            count += (column == tl.load(paths_ptr + row * PATH + step)).to(tl.int32)
        seen = (tl.load(seen_ptr + of_text, mask=inside, other=0) != 0) | (count > 0)
        repetition = tl.load(penalties_ptr + sequence * 3)
        presence = tl.load(penalties_ptr + sequence * 3 + 1)
        frequency = tl.load(penalties_ptr + sequence * 3 + 2)
        repeated = tl.where(x < 0, x * repetition, tl.math.div_rn(x, repetition))
        x = tl.where(seen, repeated, x) - tl.where(count > 0, presence, 0.0)
        x -= frequency * count.to(tl.float32)
    if tl.load(positions_ptr + row) < tl.load(least_ptr + sequence):
        stops = tl.load(stops_ptr + of_text, mask=inside, other=0) != 0
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
    bias: tuple[Tensor, Tensor],
    penalties: tuple[Tensor, Tensor],
    texts: tuple[Tensor, Tensor],
    stops: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """logits [R, V] -> the same processed, float32, and of each block the largest and the least
    that is finite, infinity for none: float32 [R, 2, N].

    Rows are of `sequences` int64 [R], choose tokens at `positions` int64 [R] and have `paths` int64
    [R, P] of drafts behind their text, -1 where there is none. Of S sequences: `bias` is which have
    one, bool [S], and float32 [S, V]; `penalties` which have any, bool [S], and float32 [S, 3] of
    repetition, presence and frequency; `texts` how often each token was generated, int32 [S, V],
    and which the prompt has, bool [S, V]; `stops` the position before which stop ids may not be
    chosen, int64 [S], and which these are, bool [S, V].
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
        **OPTIONS,
    )
    return out, extremes
