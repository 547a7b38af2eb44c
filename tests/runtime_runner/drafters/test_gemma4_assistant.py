"""Rounds with an assistant, against what transformers drafts from the text alone."""

import itertools
from collections.abc import Sequence

import pytest
from torch import Tensor

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from support.golden_cases import golden_case
from support.heads.assistants import assistant_pair
from support.runner.eager_executor import EagerExecutor, prefilled
from support.runner.watched import rounds_of

K = 5
TREES = [Shape(3, 3, 9), Shape(5, 4, 16), Shape.of_paths(((0,), (1,), (0, 0), (1, 2), (0, 0, 1)))]


class LoggingDrafter(AssistantDrafter):
    """Keeps what was drafted and accepted, and its logits after each round."""

    def __init__(self, executor: EagerExecutor) -> None:
        super().__init__(executor, executor.artifact, None)
        self.drafts: list[list[int]] = []
        self.accepted: list[int] = []
        self.next_logits: list[Tensor] = []

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        draft = super().propose(running, shape)
        self.drafts.append(draft.tokens[0].tolist())
        return draft

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        super().observe(accepted, features)
        self.next_logits.append(self.logits(accepted.sequences)[0, 0])
        if self.drafts:
            self.accepted.append(int(accepted.count))


def opened(name: str) -> tuple[EagerExecutor, dict[str, Tensor]]:
    directory, case = golden_case(f"mtp/{name}")
    return EagerExecutor(assistant_pair(directory)[0]), case


def decoded(
    executor: EagerExecutor, shape: Shape, prompt: Sequence[int], length: int
) -> tuple[list[int], LoggingDrafter]:
    drafter = LoggingDrafter(executor)
    output, _, _ = rounds_of(executor, drafter, shape, prompt, length)
    return output, drafter


@pytest.mark.parametrize("name", ["dense_k_eq_v", "two_layers"])
def test_every_round_is_the_reference_implementations(name: str) -> None:
    """It had keys of the accepted text and of nothing else."""
    executor, case = opened(name)
    prompt, text = case["input.tokens"].tolist(), case["expected.text"].tolist()
    output, drafter = decoded(executor, Shape.chain(K), prompt, len(text) - len(prompt))
    assert output == text[len(prompt) :]
    assert drafter.drafts == case["expected.round_drafts"].tolist()
    assert drafter.accepted == case["expected.round_accepted"].tolist()
    assert executor.calls["mtp_decode"] == K * len(drafter.drafts) + 1


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_logits_after_a_tree_are_those_after_the_text(shape: Shape) -> None:
    """The last keys of the text lie where the tree has left them."""
    executor, case = opened("two_layers")
    prompt = case["input.tokens"].tolist()
    output, drafter = decoded(executor, shape, prompt, 30)
    text = [*prompt, *output]
    assert text == case["expected.text"].tolist()[: len(text)]
    assert max(drafter.accepted) > 1
    lengths = itertools.accumulate(drafter.accepted, lambda n, a: n + a + 1, initial=len(prompt))
    whole = case["expected.text"].tolist()
    for length, logits in zip(lengths, drafter.next_logits, strict=True):
        assert (logits - logits_after(executor, whole[:length])).abs().max() < 1e-4


def logits_after(executor: EagerExecutor, text: Sequence[int]) -> Tensor:
    """Return the logits of an assistant after a text that it has read as a prompt, float32 [V]."""
    drafter = LoggingDrafter(executor)
    prefilled(executor, drafter, text)
    return drafter.next_logits[-1]


def test_backlog_catches_up_after_plain_rounds() -> None:
    executor, case = opened("two_layers")
    text, start = case["expected.text"].tolist(), len(case["input.tokens"])
    drafter, target = LoggingDrafter(executor), TargetMethods(executor, executor.artifact)
    running = BatchState([0], executor.artifact.tail, "cpu")
    running.place(prefilled(executor, drafter, text[:start]), start)
    backlog = Backlog(drafter, 12, running)
    plain = Round(target, backlog, 0, running)
    for _ in range(12):
        plain.run()
    following = text[start + 1 : start + 13]
    right = backlog.catch_up(start, following)
    logits = drafter.logits(running.sequences)[0, 0]
    assert (logits - logits_after(executor, text[: start + 12])).abs().max() < 1e-4
    firsts = [logits_after(executor, text[:end]).argmax() for end in range(start, start + 12)]
    assert right == [int(f) == t for f, t in zip(firsts, following, strict=True)]
    assert any(right) and not all(right)
