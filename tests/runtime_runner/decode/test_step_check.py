"""Steps that cannot run are refused in one line before anything is stored."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.step import StepRows, chain_rows, tree_rows
from eagle_aot.runtime_runner.decode.step_check import check_step
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.runner import Runner
from support.runner.logging_executor import CONSTANTS, TAIL, VOCAB, LoggingExecutor
from support.runner.toy import tree_of

BATCH = replace(CONSTANTS, max_batch_size=4)


def chain(rows: int = 5, first: int = 30, sequence: int = 0) -> StepRows:
    tokens = torch.arange(rows).unsqueeze(0) % VOCAB
    return chain_rows(tokens, torch.tensor([first]), torch.tensor([sequence]), TAIL)


def tree(first: int = 30) -> StepRows:
    """Return a step of two branches; the first is longer."""
    draft = tree_of([[1, 2, 3, 4]], [[0, 0, 1, 3]])
    zero = torch.tensor([[0]])
    return tree_rows(zero, torch.tensor([first]), torch.tensor([0]), draft, TAIL)


def with_tail(step: StepRows, row: int, entry: int, slot: int) -> StepRows:
    tail = step.tail.clone()
    tail[0, row, entry] = slot
    return replace(step, tail=tail)


def both(sequences: list[int]) -> StepRows:
    first = torch.tensor([10, 20])
    return chain_rows(torch.zeros(2, 3, dtype=torch.int64), first, torch.tensor(sequences), TAIL)


@pytest.mark.parametrize("first", [0, 1, 15, 16, 17, 239])
def test_steps_of_rounds_are_accepted(first: int) -> None:
    check_step(chain(first=first), CONSTANTS)
    check_step(tree(first), CONSTANTS)
    check_step(both([3, 1]), BATCH)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=63), st.integers(0, 200))
def test_steps_of_any_tree_are_accepted(choices: list[int], first: int) -> None:
    parents, depth = [], [0]
    for choice in choices:
        possible = [row for row, d in enumerate(depth) if d < TAIL - 1]
        parents.append(possible[choice % len(possible)])
        depth.append(depth[parents[-1]] + 1)
    draft = tree_of([[0] * len(parents)], [parents])
    where = torch.tensor([[0]]), torch.tensor([first]), torch.tensor([0])
    check_step(tree_rows(*where, draft, TAIL), CONSTANTS)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda: chain(rows=65), "a step of 1 x 65 rows: this artifact takes 1 to 64"),
        (lambda: chain(sequence=1), "sequence 1: this artifact has 1, from 0 on: export with"),
        (lambda: chain(sequence=-1), "sequence -1: this artifact has 1"),
        (lambda: chain(first=270), "position 272 is beyond the context of 256"),
        (lambda: replace(chain(), tokens=torch.full((1, 5), VOCAB)), "leave the vocabulary of 50"),
        (lambda: replace(chain(), positions=torch.zeros(1, 4)), "positions is float32 [1, 4], not"),
        (lambda: with_tail(chain(), 2, 15, 31), "sequence 0: two rows lie in slot 31"),
        (lambda: with_tail(chain(), 0, 3, 5), "slot 5 at position 18, whose slot is committed"),
        (lambda: with_tail(chain(), 2, 14, 40), "slot 40 holds no row at position 31"),
        (lambda: with_tail(chain(first=3), 0, 2, 0), "slot 0 is before the text's beginning"),
        (lambda: with_tail(chain(), 0, 15, 400), "at 30 is not a path: slot 400 at position 30"),
        (lambda: with_tail(tree(), 4, 13, 47), "slot 48 does not follow slot 47"),
    ],
)  # fmt: skip
def test_wrong_rows_are_refused_in_one_line(step: Callable[[], StepRows], message: str) -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))
    with pytest.raises(SettingError) as refused:
        runner.verify(step())
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert executor.calls == []


def test_sequence_used_twice_is_refused() -> None:
    with pytest.raises(SettingError, match="sequence 2 is used twice in a step"):
        check_step(both([2, 2]), BATCH)


@pytest.mark.parametrize("moves", [torch.zeros(1, 15), torch.zeros(2, 16)])
def test_moves_of_another_shape_are_refused(moves: Tensor) -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))
    with pytest.raises(SettingError, match="moves is float32"):
        runner.verify(chain(), moves)
