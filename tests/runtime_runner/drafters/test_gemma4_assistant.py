"""Rounds with an assistant: what transformers' would have drafted, from the text alone."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from eagle_aot.runtime_runner.engine.request import Limits
from support.golden_cases import golden_case
from support.heads.assistants import SEQ_LEN, assistant_pair
from support.runner.eager_executor import EagerExecutor
from support.runner.one_text import decode

K = 5
TREES = [Shape(3, 3, 9), Shape(5, 4, 16), Shape.of_paths(((0,), (1,), (0, 0), (1, 2), (0, 0, 1)))]


class Watched(AssistantDrafter):
    """Keeps what was drafted and accepted, and what it says behind each round."""

    def __init__(self, executor: EagerExecutor, constants: Constants) -> None:
        super().__init__(executor, constants, None)
        self.drafts: list[list[int]] = []
        self.accepted: list[int] = []
        self.said: list[Tensor] = []

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        draft = super().propose(running, shape)
        self.drafts.append(draft.tokens[0].tolist())
        return draft

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        super().observe(accepted, features)
        self.said.append(self.logits(accepted.sequences)[0, 0])
        if self.drafts:
            self.accepted.append(int(accepted.count))


def opened(name: str) -> tuple[EagerExecutor, Constants, dict[str, Tensor]]:
    directory, case = golden_case(f"mtp/{name}")
    pair, target, draft = assistant_pair(directory)
    constants = Constants(
        max_seq_len=SEQ_LEN, vocab_size=target.vocab_size, n_layers=target.num_hidden_layers,
        min_prefill_chunk=65, max_prefill_chunk=96, sliding_window=16, chain_len=4, max_rows=64,
        max_batch_size=1, tail=16, flat_slots=SEQ_LEN + 96, draft_vocab_size=target.vocab_size,
        hidden_size=draft.hidden_size, eos_ids=(),
    )  # fmt: skip
    return EagerExecutor(pair), constants, case


def decoded(
    executor: EagerExecutor, constants: Constants, shape: Shape, prompt: Sequence[int], room: int
) -> tuple[list[int], Watched]:
    drafter = Watched(executor, constants)
    running = BatchState([0], constants.tail, "cpu")
    round_ = Round(TargetMethods(executor, constants), drafter, shape, running)
    output, _ = decode(round_, prompt, Limits(max_new_tokens=room, stop_ids=frozenset()))
    return output, drafter


@pytest.mark.parametrize("name", ["dense_k_eq_v", "two_layers"])
def test_every_round_is_the_reference_implementations(name: str) -> None:
    """Which had keys of the accepted text and of nothing else."""
    executor, constants, case = opened(name)
    prompt, text = case["input.tokens"].tolist(), case["expected.text"].tolist()
    output, drafter = decoded(executor, constants, Shape.chain(K), prompt, len(text) - len(prompt))
    assert output == text[len(prompt) :]
    assert drafter.drafts == case["expected.round_drafts"].tolist()
    assert drafter.accepted == case["expected.round_accepted"].tolist()
    assert executor.calls["mtp_decode"] == K * len(drafter.drafts) + 1


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_behind_a_tree_it_says_what_it_says_behind_the_text(shape: Shape) -> None:
    """Whose last keys lie where the tree has left them."""
    executor, constants, case = opened("two_layers")
    prompt, room = case["input.tokens"].tolist(), 30
    output, drafter = decoded(executor, constants, shape, prompt, room)
    text = [*prompt, *output]
    assert text == case["expected.text"].tolist()[: len(text)]
    assert max(drafter.accepted) > 1
    lengths = itertools.accumulate(drafter.accepted, lambda n, a: n + a + 1, initial=len(prompt))
    whole = case["expected.text"].tolist()
    for length, said in zip(lengths, drafter.said, strict=True):
        assert (said - behind(executor, constants, whole[:length])).abs().max() < 1e-4


def behind(executor: EagerExecutor, constants: Constants, text: Sequence[int]) -> Tensor:
    """What an assistant says that has seen a text as a prompt, float32 [V]."""
    drafter = Watched(executor, constants)
    prefilled(TargetMethods(executor, constants), drafter, text)
    return drafter.said[-1]


def prefilled(target: TargetMethods, drafter: Watched, text: Sequence[int]) -> Tensor:
    """The token behind a text, int64 [1, 1]."""
    run = Prefill(target, drafter, text, torch.zeros(1, dtype=torch.int64))
    while run.left:
        token = run.run_chunk()
    return token


def test_it_catches_up_with_rows_that_it_was_not_shown() -> None:
    executor, constants, case = opened("two_layers")
    text, start = case["expected.text"].tolist(), len(case["input.tokens"])
    drafter, target = Watched(executor, constants), TargetMethods(executor, constants)
    running = BatchState([0], constants.tail, "cpu")
    running.place(prefilled(target, drafter, text[:start]), start)
    features = []

    class Kept:
        def observe(self, accepted: Accepted, found: Tensor) -> None:
            features.append(found)

        def propose(self, running: BatchState, shape: Shape) -> Draft:
            return Draft(running.bonus[:, :0])

    plain = Round(target, Kept(), 0, running)
    for _ in range(12):
        plain.play()
    following = torch.tensor([text[start + 1 : start + 13]])
    path = committed(following, torch.arange(start, start + 12), running.sequences)
    right = drafter.catch_up(path, torch.cat(features, dim=1), running.sampler)
    said = drafter.logits(running.sequences)[0, 0]
    assert (said - behind(executor, constants, text[: start + 12])).abs().max() < 1e-4
    firsts = [behind(executor, constants, text[:end]).argmax() for end in range(start, start + 12)]
    assert right[0].tolist() == [int(f) == t for f, t in zip(firsts, following[0], strict=True)]
    assert right.any() and not right.all()
