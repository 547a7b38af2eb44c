"""What a text costs, against logarithms written out."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from eval_text import likelihood

VOCAB = 5
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))


class Bigrams:
    """In a target's place: the next token depends on the last one alone."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []

    def reset_cache(self) -> None:
        self.pieces.append([])

    def forward_logits_taps(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, None]:
        self.pieces[-1] += input_pos.tolist()
        return TABLE[tokens], None


def cost(last: int, token: int) -> float:
    weights = [math.exp(float(x)) for x in TABLE[last]]
    return -math.log(weights[token] / sum(weights))


def test_each_piece_is_a_text_of_its_own() -> None:
    target: Any = Bigrams()
    nats, chosen = likelihood(target, [0, 3, 2, 1, 4, 4, 0, 2, 1], 4)
    pairs = [(0, 3), (3, 2), (2, 1), (4, 4), (4, 0), (0, 2)]  # the ninth stands alone
    assert nats == pytest.approx(sum(cost(*pair) for pair in pairs), rel=1e-6)
    assert chosen == [max(range(VOCAB), key=TABLE[a].tolist().__getitem__) for a, _ in pairs]
    assert target.pieces == [[0, 1, 2, 3], [0, 1, 2, 3]]
