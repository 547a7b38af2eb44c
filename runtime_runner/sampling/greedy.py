"""The likeliest token."""

from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.common.threads import single_threaded_on_cpu

BLOCKS = 256
"""At most so many parts of a vocabulary are searched side by side."""


def greedy(logits: Tensor) -> Tensor:
    """`logits` float [B, T, V] -> the index of the largest, the first of equals, int64 [B, T]."""
    with single_threaded_on_cpu(logits):
        return _first_of_largest(logits)


def _first_of_largest(logits: Tensor) -> Tensor:
    """Searched in blocks, then among their winners: one reduction over V would leave a GPU to so
    few programs as there are rows."""
    vocab = logits.shape[-1]
    blocks = next(count for count in range(BLOCKS, 0, -1) if vocab % count == 0)
    size = vocab // blocks
    largest, within = logits.unflatten(-1, (blocks, size)).max(dim=-1)
    winners = within + size * arange_cached(0, blocks, logits.device)
    return winners.gather(-1, largest.argmax(dim=-1, keepdim=True)).squeeze(-1)
