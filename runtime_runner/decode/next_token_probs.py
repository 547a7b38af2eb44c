"""The next tokens that a drafter expects after a round, on their way to the host."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

WIDTH = 8
"""How many of the likeliest tokens are reported."""
STEPS = 2.0**16
"""Fixed-point scale of log probabilities, which travel as whole numbers next to token ids."""


class NextTokenProbs(NamedTuple):
    """The likeliest next `tokens` of a sequence, in falling order, with the drafter's
    probabilities of them."""

    tokens: Sequence[int]
    chances: Sequence[float]

    @classmethod
    def read(cls, row: Sequence[int]) -> "NextTokenProbs":
        """Read one sequence's row of a tensor that `packed` made."""
        return cls(row[:WIDTH], [math.exp(step / STEPS) for step in row[WIDTH:]])


@runtime_checkable
class PredictsNextToken(Protocol):
    """A drafter that can report its probabilities of the next token."""

    def next_token_probs(self, sequences: Tensor) -> Tensor:
        """Return what `packed` makes, int64 [B, 2 W], for `sequences` int64 [B]."""


def packed(tokens: Tensor, scores: Tensor) -> Tensor:
    """Pack tokens int64 [B, W] and their log probabilities float32 [B, W] as int64 [B, 2 W]."""
    return torch.cat((tokens, (scores * STEPS).round().long()), dim=1)
