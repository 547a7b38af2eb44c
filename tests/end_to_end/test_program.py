"""The three methods of the real `.pte`: rows, chunks, counts, and agreement with eager code."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, PREFILL, TARGET_VERIFY
from eagle_aot.export import Pair, load_draft
from eagle_aot.lab.checks.rows import RowCheck
from eagle_aot.lab.training.tiny.stories import final_answer, stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.targets import TARGETS, load_target
from support.runner.eager_executor import EagerExecutor

FIXTURES = ["tiny", "batch_runner"]
SITUATIONS = {"among 64", "32 in a bucket of 64", "as nodes of a tree", "after a moved path"}
FIRST = torch.zeros(1, dtype=torch.int64)


def noise(runner: Runner, length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(runner.constants.vocab_size) for _ in range(length)]


def ids(tokens: list[int]) -> Tensor:
    return torch.tensor([tokens])


def verify(runner: Runner, tokens: list[int], start: int) -> tuple[Tensor, Tensor]:
    """Return the logits and features of a chain."""
    step = chain_rows(ids(tokens), torch.tensor([start]), FIRST, runner.constants.tail)
    logits, features = runner.target.verify(step, no_moves(1, runner.constants.tail, "cpu"))
    return logits.clone(), features.clone()


def prefilled(runner: Runner, tokens: list[int], lengths: Sequence[int]) -> Tensor:
    """Run a prompt through `prefill` in chunks of these lengths; return all features [1, T, H]."""
    found, start = [], 0
    for length in lengths:
        part, places = ids(tokens[start : start + length]), torch.arange(start, start + length)
        found.append(runner.executor.run(PREFILL, part, places, FIRST)[1].clone())
        start += length
    assert start == len(tokens)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("fixture", [*FIXTURES, "qwen3_runner"])
def test_a_row_does_not_depend_on_its_neighbours(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """Nor on the width of its bucket, or where its path lies: bit for bit."""
    runner: Runner = request.getfixturevalue(fixture)
    window = runner.constants.sliding_window
    for context in (0, 17, window + 5, 120, 511, 900):
        if context + runner.constants.max_rows <= runner.constants.max_seq_len:
            found = list(RowCheck(runner, context).all())
            assert {one.situation for one in found} >= SITUATIONS
            assert [one for one in found if one.different] == []


@pytest.mark.parametrize("fixture", ["batch_runner", "experts_runner"])
def test_a_row_does_not_depend_on_other_sequences(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """Of the four of an artifact, each at its own length."""
    for context in (0, 17, 100):
        found = list(RowCheck(request.getfixturevalue(fixture), context).all())
        named = {one.situation for one in found}
        assert named >= {*SITUATIONS, "sequence 3", "in a batch of 4"}
        assert [one for one in found if one.different] == []


def test_rows_of_earlier_texts_are_never_seen(batch_runner: Runner) -> None:
    """Each sequence has the same bits after a longer text."""
    fresh = RowCheck(batch_runner, 20, seed=1)
    for sequence in range(batch_runner.constants.max_batch_size):
        fresh._fill(sequence, 0)
        RowCheck(batch_runner, 100, seed=2 + sequence)
        assert fresh._sequence(sequence).different == 0


@pytest.mark.parametrize("fixture", FIXTURES)
def test_chunks_of_any_length_give_the_same_bits(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    tokens = noise(runner, 166)
    expected = prefilled(runner, tokens, (83, 83))
    after = verify(runner, tokens[:3], len(tokens))
    for lengths in ((70, 96), (96, 70)):
        assert torch.equal(prefilled(runner, tokens, lengths), expected)
        assert all(map(torch.equal, verify(runner, tokens[:3], len(tokens)), after))


def test_the_program_computes_what_eager_code_computes(tiny: Runner) -> None:
    """After a text that leaves the sliding window, by each method, after another text."""
    spec = TARGETS["gemma4-tiny"]
    assert spec.draft_dir is not None
    target = load_target("gemma4-tiny", 256)
    eager = EagerExecutor(Pair(target, load_draft(spec.draft_dir, target, 256)))
    tiny.generate(noise(tiny, 200, seed=3), 8)
    prompt = noise(tiny, 90, seed=4)
    chunk = ids(prompt), torch.arange(len(prompt)), FIRST
    agree(eager.run(PREFILL, *chunk), tiny.executor.run(PREFILL, *chunk))
    tail = tiny.constants.tail
    for start, count in ((90, 40), (130, 1), (131, 7), (138, 64)):
        more = noise(tiny, count, seed=start)
        step = chain_rows(ids(more), torch.tensor([start]), FIRST, tail).inputs
        found = tiny.executor.run(TARGET_VERIFY, *step, no_moves(1, tail, "cpu"))
        agree(eager.run(TARGET_VERIFY, *step, no_moves(1, tail, "cpu")), found)
        slots = chain_rows(ids(more), torch.tensor([start - 90]), FIRST, tail).inputs
        drafted = tiny.executor.run(DRAFT_DECODE, *slots, found[1])
        agree(eager.run(DRAFT_DECODE, *slots, found[1]), drafted)


def agree(expected: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    """Check logits and features, which differ as much as two orders of sums."""
    for one, other in zip(expected, found, strict=True):
        assert (one - other).norm() < 2e-3 * one.norm()


def test_target_forwards_are_rounds_plus_chunks(
    tiny: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, int] = {}
    run = tiny.executor.run

    def counting(method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        calls[method] = calls.get(method, 0) + 1
        return run(method, *inputs)

    monkeypatch.setattr(tiny.executor, "run", counting)
    for length, chain_len in ((3, 2), (64, 4), (65, 7), (200, 4)):
        calls.clear()
        stats = tiny.generate(noise(tiny, length), 24, chain_len).stats
        forwards = calls.get(PREFILL, 0) + calls.get(TARGET_VERIFY, 0)
        assert stats.target_forwards == stats.rounds + stats.prefill_chunks == forwards


def test_one_token_runs_no_draft(tiny: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny.executor.run

    def no_draft(method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        assert method != DRAFT_DECODE
        return run(method, *inputs)

    monkeypatch.setattr(tiny.executor, "run", no_draft)
    result = tiny.generate(noise(tiny, 100), max_new_tokens=1)
    assert (len(result.token_ids), result.stats.rounds) == (1, 0)


def test_the_shipped_pair_answers_and_drafts_well(tiny: Runner) -> None:
    emitted = rounds = right = 0
    generator = stories(31, "test")
    for _ in range(20):
        story = next(generator)
        result = tiny.generate(story.question, 200, 4)
        emitted, rounds = emitted + result.stats.emitted, rounds + result.stats.rounds
        right += final_answer(result.text or "") == story.final
    assert right >= 18
    assert emitted / rounds >= 4.5
