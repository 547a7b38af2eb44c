"""Speculative output equals plain greedy output, through the real `.pte`, for every chain length.

No tolerance: token for token, whatever the drafter proposes.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from eagle_aot.lab.scripted import ScriptedDrafter
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import AUTO_CHAINS, AUTO_TREES, PLAIN, Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine import Limits
from eagle_aot.runtime_runner.engine.engine import Engine
from support.runner.engines import decode
from support.runner.lossless import BOUNDARIES, CHAIN_LENS, ShuffledChooser, mixed_prompts

PARALLEL: list[dict[str, Any]] = [{"chain_len": 1}, {"chain_len": 7}, {"tree": (5, 4, 16)}]

FEW = 24
"""Prompts; each is decoded in some of the ways, in turn."""


@pytest.mark.parametrize("fixture", ["tiny", "batch_runner"])
def test_a_head_never_changes_the_tokens(fixture: str, request: pytest.FixtureRequest) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    lengths = itertools.cycle(CHAIN_LENS)
    for prompt in mixed_prompts(runner, FEW):
        plain = runner.generate(prompt, 20, speculate=False)
        for chain_len in itertools.islice(lengths, 2):
            result = runner.generate(prompt, 20, chain_len)
            assert result.token_ids == plain.token_ids, (len(prompt), chain_len)
            assert result.finish_reason == plain.finish_reason


@pytest.mark.parametrize(
    ("fixture", "ahead"),
    [("tiny", True), pytest.param("batch_runner", False, marks=pytest.mark.slow)],
)
def test_no_order_of_shapes_changes_the_tokens(
    fixture: str, ahead: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the next round is planned while one is in flight."""
    monkeypatch.setattr(Engine, "is_asynchronous", ahead)
    runner: Runner = request.getfixturevalue(fixture)
    schedule = runner.adaptive_schedule(True)
    monkeypatch.setattr(schedule, "chooser", ShuffledChooser(schedule.chooser.costs))
    chosen = []
    for prompt in mixed_prompts(runner, 40)[1::4]:
        plain = runner.generate(prompt, 40, speculate=False)
        result = runner.generate(prompt, 40, tree="auto")
        assert result.token_ids == plain.token_ids, len(prompt)
        chosen.append(result.stats)
    every = {shape.label for shape in (*AUTO_CHAINS, *AUTO_TREES)}
    assert set(Stats.total(chosen).rounds_by_shape) == every


def test_catching_up_changes_no_draft(tiny: Runner) -> None:
    """After plain rounds that the head caught up on, it drafts what it drafts without them."""
    prompt = tiny.tokenizer.encode(next(stories(6, "test")).question, raw=False)
    schedule, fixed = tiny.adaptive_schedule(False), tiny.round(1)
    proposed = []
    for late in (False, True):
        prefill(fixed, prompt, Stats(chain_len=1))
        text: list[int] = []
        if late:
            schedule.backlog.clear()
            for _ in range(8):
                text += schedule.rounds[PLAIN].run()[0].tolist()[1:]
            schedule.backlog.catch_up(len(prompt), text)
        else:
            while len(text) < 8:
                accepted, *greedy = fixed.run()[0].tolist()
                text += greedy[: accepted + 1]
        proposed.append((text, tiny.drafter.propose(tiny.batch, Shape.chain(4)).tokens.tolist()))
    assert proposed[0] == proposed[1]


@pytest.mark.slow
def test_a_head_in_int4_never_changes_the_tokens(int4_head: Runner, tiny: Runner) -> None:
    """Its drafts are accepted about as often, and its target is the same."""
    for prompt in mixed_prompts(int4_head)[:BOUNDARIES]:
        plain = int4_head.generate(prompt, 20, speculate=False)
        assert plain.token_ids == tiny.generate(prompt, 20, speculate=False).token_ids
        for chain_len in (1, 7):
            assert int4_head.generate(prompt, 20, chain_len).token_ids == plain.token_ids
    for story in itertools.islice(stories(2, "test"), 3):
        result = int4_head.generate(story.question, 128, 4)
        assert result.token_ids == tiny.generate(story.question, 128, speculate=False).token_ids
        assert result.stats.tau is not None and result.stats.tau > 3.5


def test_a_parallel_head_of_a_qwen3_never_changes_the_tokens(qwen3_runner: Runner) -> None:
    """The target has full and sliding layers, scaled frequencies, and its own output table."""
    for prompt in mixed_prompts(qwen3_runner, FEW):  # lengths around every boundary come first
        plain = qwen3_runner.generate(prompt, 20, speculate=False)
        for drafts in PARALLEL:
            found = qwen3_runner.generate(prompt, 20, **drafts)
            assert found.drafter == "p-eagle" and found.token_ids == plain.token_ids


@pytest.mark.parametrize(("right", "name"), [
    (lambda known: 0 * known, "a = 0"),
    (lambda known: known % 4, "partial"),
    (lambda known: 0 * known + 7, "a = K"),
], ids=["none", "partial", "all"])  # fmt: skip
def test_forced_acceptance_never_changes_the_tokens(
    batch_runner: Runner, right: Callable[[Tensor], Tensor], name: str
) -> None:
    """With three chain lengths around boundaries of prompts, and with two elsewhere."""
    runner, new_tokens, lengths = batch_runner, 18, itertools.cycle(CHAIN_LENS)
    for i, prompt in enumerate(mixed_prompts(runner, FEW)):
        plain = runner.generate(prompt, new_tokens, speculate=False).token_ids
        for chain_len in itertools.islice(lengths, 3 if i < BOUNDARIES else 2):
            limits = Limits(max_new_tokens=new_tokens, stop_ids=frozenset())
            drafter = ScriptedDrafter(len(prompt), plain, right)
            round_ = Round(runner.target, drafter, chain_len, BatchState([0], 16, "cpu"))
            output, stats = decode(round_, prompt, limits)
            assert output == plain, (name, len(prompt), chain_len)
            if name == "a = 0":
                assert stats.rounds == new_tokens - 1
            if name == "a = K":
                assert stats.rounds == -(-(new_tokens - 1) // (chain_len + 1))


@pytest.mark.parametrize("fixture", ["tiny", "batch_runner"])
def test_the_last_tokens_of_the_context_are_decoded(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    context = runner.constants.max_seq_len
    rng = random.Random(1)
    prompt = [rng.randrange(runner.constants.vocab_size) for _ in range(context - 11)]
    plain = None
    for left in (1, 2, 5, 11):
        padded = prompt + [7] * (11 - left)
        for chain_len in (None, 1, 4, 7):
            result = runner.generate(padded, 1000, chain_len, chain_len is not None)
            plain = result.token_ids if chain_len is None else plain
            assert result.token_ids == plain
            if result.finish_reason != "stop":
                assert (len(result.token_ids), result.finish_reason) == (left, "context")
