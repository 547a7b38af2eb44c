"""The steps that are timed: what runs, on which rows, at which positions."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_aot.artifact import DRAFT_DECODE, TARGET_VERIFY
from eagle_aot.lab.bench.parts import Parts, WholeRound
from eagle_aot.lab.bench.prefill import fill, fill_all, longest_chunk
from eagle_aot.lab.bench.rounds import RoundsSpec
from eagle_aot.lab.bench.timing import HostClock
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter
from eagle_aot.runtime_runner.runner import Runner
from support.runner.logging_executor import CONSTANTS, TAIL, VOCAB, LoggingExecutor


@pytest.fixture
def runner() -> Runner:
    executor = LoggingExecutor()
    return Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))


def spec(*chain_lens: int, rows: tuple[int, ...] = (1,)) -> RoundsSpec:
    named = RoundsSpec(artifact=Path(), contexts=(64,), chain_lens=chain_lens, rows=rows, repeats=1)
    return named.fitted(CONSTANTS)


def calls_of(runner: Runner) -> list[tuple[str, list[int], list[int]]]:
    """Return and forget the executor's calls."""
    assert isinstance(runner.executor, LoggingExecutor)
    calls, runner.executor.calls = runner.executor.calls, []
    return calls


def test_every_figure_has_a_part(runner: Runner) -> None:
    parts = Parts(runner, spec(1, 3, rows=(1, 2, 16, 64)))
    named = [(part.name, part.rows) for part in parts.forwards]
    verify = [("verify", rows) for rows in (2, 4, 16, 64)]
    steps = [("draft step", 1), ("reseed", 2), ("reseed", 4)]
    assert named == [("plain decode", 1), *verify, *steps]
    assert [round_.shape for round_ in parts.rounds] == [Shape.chain(k) for k in (0, 1, 3)]
    assert isinstance(runner.executor, LoggingExecutor)
    assert len(runner.executor.repeated) == len(parts.forwards)


def test_a_drafter_without_a_head_has_no_forwards() -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, NgramDrafter(CONSTANTS, "cpu"))
    parts = Parts(runner, spec(1, 3))
    assert [(part.name, part.rows) for part in parts.forwards] == [
        ("plain decode", 1), ("verify", 2), ("verify", 4),
    ]  # fmt: skip
    round_ = parts.rounds[-1]
    round_.place(40)
    round_.timed.prepare()
    calls_of(runner)
    round_.timed.run()
    ((method, _, positions),) = calls_of(runner)
    assert (method, positions) == (TARGET_VERIFY, [40, 41, 42, 43])


def test_forwards_run_random_tokens_after_the_context(runner: Runner) -> None:
    parts = Parts(runner, spec(3))
    seen = set()
    for context in (40, 100, 100):
        parts.place(context)
        calls_of(runner)
        for part in parts.forwards:
            part.timed.prepare()
            part.timed.run()
            ((method, tokens, positions),) = calls_of(runner)
            is_draft = part.name in ("draft step", "reseed")
            assert method == (DRAFT_DECODE if is_draft else TARGET_VERIFY)
            assert positions == list(range(context, context + part.rows))
            assert all(0 <= token < VOCAB for token in tokens)
            seen.update(tokens)
    assert len(seen) > 10


def test_rounds_start_at_the_context_every_time(runner: Runner) -> None:
    fill(runner, 3, 40, 1)
    round_ = WholeRound(runner.round(3), VOCAB)
    round_.place(40)
    for _ in range(5):
        round_.timed.prepare()
        calls_of(runner)
        accepted, *greedy = round_.timed.run()[0].tolist()
        calls = calls_of(runner)
        assert len(greedy) == 4 and 0 <= accepted <= 3
        assert [method for method, _, _ in calls] == [
            DRAFT_DECODE, DRAFT_DECODE, TARGET_VERIFY, DRAFT_DECODE,
        ]  # fmt: skip
        assert calls[-2][2] == [40, 41, 42, 43]
        rest = [-1] * (3 - accepted)  # which were not accepted are padding
        assert calls[-1][2] == [*range(40, 41 + accepted), *rest]


def test_rounds_of_a_batch_pad_the_other_sequences() -> None:
    executor, constants = LoggingExecutor(), replace(CONSTANTS, max_batch_size=4)
    runner = Runner(Path(), executor, constants, Eagle3Drafter(executor, constants, None))
    fill_all(runner, range(4), 40)
    round_ = WholeRound(runner.round(2, 4), VOCAB, batch_size=3)
    round_.place(40)
    round_.timed.prepare()
    calls_of(runner)
    assert (round_.timed.run()[:, 0] >= 0).all()
    *_, verify, _ = calls_of(runner)
    assert verify[2] == [40, 41, 42] * 3 + [-1] * 3


def test_no_draft_leaves_the_cache(runner: Runner) -> None:
    """Rounds that restart at the same context stay within the cache's slack."""
    context, slots = CONSTANTS.max_seq_len - TAIL, CONSTANTS.flat_slots
    fill(runner, 7, context, 1)
    round_ = WholeRound(runner.round(7), VOCAB)
    round_.place(context)
    for _ in range(50):
        round_.timed.prepare()
        round_.timed.run()
    assert max(max(positions) for _, _, positions in calls_of(runner)) < slots


def test_filling_covers_the_context_with_target_and_drafter(runner: Runner) -> None:
    filled = fill(runner, 3, 70, 2)
    assert (filled.tokens, filled.ms > 0) == (70, True)
    calls = calls_of(runner)
    written = [positions for method, _, positions in calls if method == DRAFT_DECODE]
    # Three times: one that does not count, and two.
    assert list(itertools.chain(*written)) == [*range(70)] * 3


def test_longest_chunk_is_a_chunk_of_prompts(runner: Runner) -> None:
    assert longest_chunk(runner, HostClock(), 1).tokens == CONSTANTS.max_prefill_chunk
    assert {method for method, _, _ in calls_of(runner)} == {"prefill"}
