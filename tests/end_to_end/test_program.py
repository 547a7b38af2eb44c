"""The three methods of the real `.pte`: rows, chunks, counts, and agreement with eager code."""

import random

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, PREFILL, TARGET_VERIFY
from eagle_aot.export import Pair, load_draft
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.round import rows
from eagle_aot.targets import TARGETS, load_target
from tiny_pair.stories import final_answer, stories

FIXTURES = ["tiny", "random_runner"]


def noise(runner: Runner, length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(runner.constants.vocab_size) for _ in range(length)]


def prefilled(runner: Runner, tokens: list[int]) -> Tensor:
    """Run a prompt in the runner's own chunks; returns all features [1, T, H]."""
    chunks = runner.verifier.plan_prompt(len(tokens))
    ids, positions = rows(tokens, 0)
    return torch.cat(
        [
            runner.verifier.forward(ids[:, c.start : c.stop], positions[c.start : c.stop])[1]
            for c in chunks
        ],
        dim=1,
    )


@pytest.mark.parametrize("fixture", FIXTURES)
def test_a_row_does_not_feel_its_neighbours(fixture: str, request: pytest.FixtureRequest) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    for context in (9, runner.constants.sliding_window + 5, 3 * runner.constants.sliding_window):
        prefilled(runner, noise(runner, context))
        window = noise(runner, 8, seed=context)
        greedy, together = runner.executor.run(TARGET_VERIFY, *rows(window, context))
        for i, token in enumerate(window):
            one, alone = runner.executor.run(TARGET_VERIFY, *rows([token], context + i))
            assert torch.equal(alone[0, 0], together[0, i])
            assert one[0, 0] == greedy[0, i]


@pytest.mark.parametrize("fixture", FIXTURES)
def test_chunks_give_exactly_what_one_chunk_gives(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    length = runner.constants.max_prefill_chunk  # two windows: the longest single chunk there is
    assert length == 2 * runner.constants.sliding_window
    tokens = noise(runner, length)
    whole_next, whole = runner.executor.run(PREFILL, *rows(tokens, 0))
    after_whole = runner.executor.run(TARGET_VERIFY, *rows(tokens[:3], length))[1]
    chunks = runner.verifier.plan_prompt(length)
    assert len(chunks) > 1
    chunked = prefilled(runner, tokens)
    after_chunked = runner.executor.run(TARGET_VERIFY, *rows(tokens[:3], length))[1]
    assert torch.equal(whole, chunked)
    assert torch.equal(after_whole, after_chunked)
    assert runner.generate(tokens, 1).token_ids == whole_next[0].tolist()


def test_the_program_computes_what_eager_code_computes(tiny: Runner) -> None:
    spec = TARGETS["gemma4-tiny"]
    assert spec.draft_dir is not None
    target = load_target("gemma4-tiny", 256)
    eager = Pair(target, load_draft(spec.draft_dir, target, 256))
    prompt = tiny.tokenizer.encode(next(stories(9, "test")).question)[:64]
    with torch.no_grad():
        expected_next, expected = eager.prefill(*rows(prompt, 0))
    found_next, found = tiny.executor.run(PREFILL, *rows(prompt, 0))
    assert torch.equal(found_next, expected_next)
    assert (found - expected).norm() < 1e-3 * expected.norm()
    tokens, positions = rows([*prompt[1:], int(found_next)], 0)
    with torch.no_grad():
        expected_ids, expected_recurrent = eager.draft_decode(tokens, expected, positions)
    ids, recurrent = tiny.executor.run(DRAFT_DECODE, tokens, found, positions)
    assert torch.equal(ids, expected_ids)
    assert (recurrent - expected_recurrent).norm() < 1e-3 * expected_recurrent.norm()


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
