"""Applies top_k, top_p and min_p: logits below a row's thresholds become minus infinity.

Importing this module needs triton.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels.process_logits import exact, narrow
from eagle_aot.triton_kernels.process_logits.exact import TILE, exact_kernel
from eagle_aot.triton_kernels.process_logits.gather import CAPACITY, LANES, gather_kernel
from eagle_aot.triton_kernels.process_logits.integers import LOWEST, ordered
from eagle_aot.triton_kernels.process_logits.narrow import narrow_kernel
from eagle_aot.triton_kernels.process_logits.penalise import BLOCK, OPTIONS
from eagle_aot.triton_kernels.process_logits.search import (
    CHOICES,
    LARGEST_VALUE,
    SPAN,
    SUMS,
    begin_kernel,
)

STEPS = 3
"""Maximum narrowing steps of a row."""
FEW = TILE
"""Number of candidates from which on a row is narrowed again."""


@triton.jit
def cut_kernel(
    x_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    min_p_ptr: tl.tensor,
    spans_ptr: tl.tensor,
    thresholds_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Mask a block of a row, after its threshold is known."""
    row, block = tl.program_id(0), tl.program_id(1)
    sequence, scale = tl.load(sequences_ptr + row), tl.load(scale_ptr + row)
    scale = tl.where(scale > 0, scale, 1.0)
    threshold = tl.load(thresholds_ptr + row)
    largest = tl.load(spans_ptr + row * SPAN + LARGEST_VALUE)
    least = largest + tl.load(min_p_ptr + sequence)
    if (threshold == LOWEST) & (least == float("-inf")):
        return
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    at = row.to(tl.int64) * VOCAB + column
    x = tl.load(x_ptr + at, mask=inside, other=float("-inf"))
    value = x * scale
    is_kept = (ordered(value) >= threshold) & (value >= least)
    tl.store(x_ptr + at, tl.where(is_kept, x, float("-inf")), mask=inside)


def launch(
    logits: Tensor,
    extremes: Tensor,
    scale: Tensor,
    sequences: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    scale_bits: int,
    log2e: float,
    exp2: tuple[float, ...],
) -> Tensor:
    """Mask logits float32 [R, V] in place: minus infinity for what is cut.

    `extremes` are those that `penalise.launch` returns, and `scale` float32 [R] is multiplied to
    the logits before they are compared. For S sequences, `top_k` int64 [S] is V to keep all,
    `top_p` float64 [S] is 1 to keep all, and `min_p` float32 [S] is a logarithm. The other
    arguments are the constants of the eager reference's weights. Temporary memory is 64 KiB per
    row.
    """
    scale, sequences = scale.contiguous(), sequences.contiguous()
    parameters = scale, sequences, top_k, top_p
    weights = {"SCALE_BITS": scale_bits, "LOG2E": log2e, "EXP2": exp2}
    spans, thresholds = _find_thresholds(logits, extremes, parameters, weights)
    (rows, vocab), blocks = logits.shape, extremes.shape[2]
    cut_kernel[(rows, blocks)](
        logits, scale, sequences, min_p, spans, thresholds, VOCAB=vocab, BLOCK=BLOCK, **OPTIONS
    )
    return logits


def _find_thresholds(
    logits: Tensor, extremes: Tensor, parameters: tuple[Tensor, ...], weights: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return the spans float32 [R, SPAN] and the thresholds int32 [R] of rows."""
    (rows, vocab), blocks = logits.shape, extremes.shape[2]
    spans = logits.new_empty(rows, SPAN.value)
    sums = parameters[2].new_empty(rows, SUMS.value + CHOICES)
    candidates = logits.new_empty(rows, min(CAPACITY, vocab))
    thresholds = sums.new_empty(rows, dtype=torch.int32)
    row_state = *parameters, spans, sums
    sizes = {"VOCAB": vocab, "CHOICES": CHOICES}
    blocked = {"BLOCKS": blocks, "BLOCK": BLOCK, **sizes}
    listed = {"CAPACITY": candidates.shape[1]}
    padded = {"BLOCKS": blocks, "MOST_BLOCKS": triton.next_power_of_2(blocks)}
    depth = {name: weights[name] for name in ("SCALE_BITS", "LOG2E")}
    begin_kernel[(rows,)](extremes, *row_state, **padded, **sizes, **depth, **OPTIONS)
    for _ in range(STEPS):
        narrow_kernel[(rows, blocks)](
            logits, *row_state, FEW=FEW, **blocked, **weights, **narrow.OPTIONS
        )
    gather_kernel[(rows, blocks)](
        logits,
        extremes,
        *row_state,
        candidates,
        LANES=min(LANES, BLOCK),
        **blocked,
        **listed,
        **OPTIONS,
    )
    exact_kernel[(rows,)](
        logits,
        *row_state,
        candidates,
        thresholds,
        TILE=TILE,
        **sizes,
        **listed,
        **weights,
        **exact.OPTIONS,
    )
    return spans, thresholds
