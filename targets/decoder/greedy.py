"""The most likely token, found by many programs of a GPU at once."""

from torch import Tensor

BLOCKS = 256
"""At most so many parts of a vocabulary are searched side by side."""


def greedy(logits: Tensor) -> Tensor:
    """`logits` float [1, T, V] -> the index of the largest, the first of equals, int64 [1, T].

    Searched in blocks, then among their winners: one reduction over V would leave a GPU to T
    programs.
    """
    vocab = logits.shape[-1]
    blocks = next(count for count in range(BLOCKS, 0, -1) if vocab % count == 0)
    parts = logits.unflatten(-1, (blocks, vocab // blocks))
    block = parts.amax(dim=-1).argmax(dim=-1, keepdim=True)
    within = parts.argmax(dim=-1).gather(-1, block)
    return (block * (vocab // blocks) + within).squeeze(-1)
