"""What an answer costs, against logarithms written out."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.rounds.step import StepRows
from eval_perplexity import likelihood

VOCAB = 5


class Bigrams:
    """In a runner's place: the next token depends on the last one alone, and rows on nothing."""

    constants = SimpleNamespace(max_rows=4, max_seq_len=12, tail=16)
    directory = "toy"
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))

    def __init__(self) -> None:
        self.positions: list[int] = []

    def verify(self, step: StepRows) -> Any:
        self.positions += step.positions[0].tolist()
        return SimpleNamespace(logits=self.table[step.tokens])


def cost(table: Tensor, last: int, token: int) -> float:
    weights = [math.exp(float(x)) for x in table[last]]
    return -math.log(weights[token] / sum(weights))


def test_nats_and_choices_of_an_answer() -> None:
    runner, prompt, answer = Bigrams(), [0, 3, 2], [1, 4, 4, 0, 2, 1]
    nats, same = likelihood(runner, prompt, answer)  # type: ignore[arg-type]
    pairs = list(zip([prompt[-1], *answer[:-1]], answer, strict=True))
    assert nats == pytest.approx(sum(cost(runner.table, *pair) for pair in pairs), rel=1e-6)
    assert same == sum(max(range(VOCAB), key=runner.table[a].tolist().__getitem__) == b
                       for a, b in pairs)  # fmt: skip
    assert runner.positions == list(range(9))


def test_a_text_without_room_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^13 tokens: toy has 12$"):
        likelihood(Bigrams(), [0] * 7, [0] * 6)  # type: ignore[arg-type]
