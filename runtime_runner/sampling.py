"""Which token follows, on the device."""

from torch import Tensor

BLOCKS = 256
"""At most so many parts of a vocabulary are searched side by side."""


def greedy(logits: Tensor) -> Tensor:
    """`logits` float [B, T, V] -> the index of the largest, the first of equals, int64 [B, T].

    Searched in blocks, then among their winners: one reduction over V would leave a GPU to so few
    programs as there are rows.
    """
    vocab = logits.shape[-1]
    blocks = next(count for count in range(BLOCKS, 0, -1) if vocab % count == 0)
    parts = logits.unflatten(-1, (blocks, vocab // blocks))
    largest, within = parts.max(dim=-1)
    block = largest.argmax(dim=-1, keepdim=True)
    return (block * (vocab // blocks) + within.gather(-1, block)).squeeze(-1)
