"""What a drafter expects behind the texts of a round, on its way to the host."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

WIDTH = 8
"""Tokens that are told of."""
STEPS = 2.0**16
"""Of a logarithm, which is told as a whole number, beside tokens."""


class NextTokenProbs(NamedTuple):
    """The likeliest `tokens` behind a text, the likeliest first, and the `chances` that a drafter
    gives them."""

    tokens: Sequence[int]
    chances: Sequence[float]

    @classmethod
    def read(cls, row: Sequence[int]) -> "NextTokenProbs":
        """One sequence's row of what `packed` made."""
        return cls(row[:WIDTH], [math.exp(step / STEPS) for step in row[WIDTH:]])


@runtime_checkable
class PredictsNextToken(Protocol):
    """A drafter that can tell more of the next token than its draft."""

    def outlook(self, sequences: Tensor) -> Tensor:
        """Behind the texts of `sequences` int64 [B], as `packed` makes it."""


def packed(tokens: Tensor, scores: Tensor) -> Tensor:
    """`WIDTH` tokens int64 [B, W] and their log probabilities float32 [B, W] as int64 [B, 2 W]."""
    return torch.cat((tokens, (scores * STEPS).round().long()), dim=1)
