"""The shipped pair through the CUDA backend and the in-process executor, on a GPU."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from eagle_aot.lab.checks.lossless import decode_with_script, random_prompt
from eagle_aot.lab.checks.rows import RowCheck
from eagle_aot.lab.training.tiny.stories import final_answer, stories
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.prompt_scoring import PromptScoring
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import AUTO_TREES, Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from support.runner.lossless import CHAIN_LENS, ShuffledChooser, mixed_prompts


@pytest.fixture(scope="module")
def recorded(cuda_artifact: Path) -> Runner:
    return load_artifact(cuda_artifact)


@pytest.fixture(scope="module")
def launched(cuda_artifact: Path) -> Runner:
    return load_artifact(cuda_artifact, cuda_graphs=False)


@pytest.mark.parametrize("context", [0, 17, 511, 4096])
def test_a_row_does_not_depend_on_its_neighbours(recorded: Runner, context: int) -> None:
    found = list(RowCheck(recorded, context).all())
    assert {"among 64", "as nodes of a tree", "after a moved path"} <= {o.situation for o in found}
    assert [one for one in found if one.different] == []


def test_chunks_of_any_length_give_the_same_bits(recorded: Runner) -> None:
    """Compares the features of all rows and the logits of the last one."""
    longest, run = recorded.constants.max_prefill_chunk, recorded.executor.run
    prompt = torch.randint(recorded.constants.vocab_size, (1, 2 * longest), device="cuda")
    first, found = torch.zeros(1, dtype=torch.int64, device="cuda"), []
    for lengths in (
        (longest, longest),
        (65, longest, longest - 65),
        (longest - 1, 66, longest - 65),
    ):
        ends = [0, *itertools.accumulate(lengths)]
        parts = [
            run("prefill", prompt[:, a:b], torch.arange(a, b, device="cuda"), first)
            for a, b in itertools.pairwise(ends)
        ]
        found.append((torch.cat([part[1] for part in parts], dim=1), parts[-1][0]))
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
def test_a_head_never_changes_the_tokens(fixture: str, request: pytest.FixtureRequest) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    for prompt in mixed_prompts(runner):
        plain = runner.generate(prompt, 20, speculate=False)
        for chain_len in CHAIN_LENS:
            result = runner.generate(prompt, 20, chain_len)
            assert result.token_ids == plain.token_ids, (len(prompt), chain_len)


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
def test_choosing_the_shape_changes_no_token(fixture: str, request: pytest.FixtureRequest) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    for prompt in mixed_prompts(runner):
        plain = runner.generate(prompt, 40, speculate=False)
        assert runner.generate(prompt, 40, "auto").token_ids == plain.token_ids, len(prompt)
        assert runner.generate(prompt, 40, tree="auto").token_ids == plain.token_ids, len(prompt)


def test_recorded_prompt_lookup_changes_no_token(cuda_artifact: Path) -> None:
    """Its drafts are those of the same text on the host, and some are accepted."""
    runner, accepted = load_artifact(cuda_artifact, drafter="ngram"), 0
    on_host = NgramDrafter(runner.constants, "cpu")
    for prompt in [[7, 8, 9] * 30, *mixed_prompts(runner)[::4]]:
        plain = runner.generate(prompt, 40, speculate=False).token_ids
        for chain_len in (1, 4, 7, "auto"):
            result = runner.generate(prompt, 40, chain_len)
            assert result.token_ids == plain, (len(prompt), chain_len)
            accepted += result.stats.accepted
        round_ = runner.round(7)  # once: on a GPU this reads something before it records
        prefill(round_, prompt, Stats(chain_len=7))
        following = torch.tensor([[*prompt[1:], int(round_.batch.bonus)]])
        path = committed(following, torch.arange(len(prompt)), torch.tensor([0]))
        on_host.observe(path, torch.empty(0))
        running = BatchState([0], runner.constants.tail, "cpu")
        running.place(following[:, -1:], len(prompt))
        chain = Shape.chain(7)
        drafts = runner.drafter.propose(round_.batch, chain).tokens.tolist()
        assert drafts == on_host.propose(running, chain).tokens.tolist()
    assert accepted


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
def test_rounds_of_any_shape_follow_one_another(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    schedule = runner.adaptive_schedule(True)
    monkeypatch.setattr(schedule, "chooser", ShuffledChooser(schedule.chooser.costs))
    for prompt in mixed_prompts(runner)[1::4]:
        plain = runner.generate(prompt, 40, speculate=False)
        assert runner.generate(prompt, 40, tree="auto").token_ids == plain.token_ids, len(prompt)


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
@pytest.mark.parametrize("context", [17, 200, 4096])
def test_scripted_drafts_never_change_the_tokens(
    fixture: str, context: int, request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    prompt = random_prompt(runner, context, seed=context)
    plain = runner.generate(prompt, 60, speculate=False).token_ids
    for chain_len in CHAIN_LENS:
        output, stats = decode_with_script(runner, prompt, plain, chain_len, 60)
        assert output == plain, chain_len
        assert stats.accepted > 0


def test_recording_changes_no_token(recorded: Runner, launched: Runner) -> None:
    for story in itertools.islice(stories(12, "test"), 20):
        first = recorded.generate(story.question, 64)
        second = launched.generate(story.question, 64)
        assert (first.token_ids, first.stats.rounds) == (second.token_ids, second.stats.rounds)


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 3.0, "seed": 5, "top_p": 0.9, "logprobs_of": "sampling"}]
)
def test_no_log_probability_depends_on_how_a_text_is_decoded(
    fixture: str, how: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    options = how | {"max_new_tokens": 20, "logprobs": 20}
    for prompt in mixed_prompts(runner)[2::20]:
        plain = runner.generate(prompt, speculate=False, **options)
        assert plain.logprobs is not None and len(plain.logprobs) == len(plain.token_ids)
        for shape in ({"chain_len": 1}, {"chain_len": 7}, {"tree": (6, 8, 32)}):
            found = runner.generate(prompt, **options, **shape)
            assert found.logprobs == plain.logprobs, (len(prompt), shape)


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
def test_no_log_probability_of_a_prompt_depends_on_how_it_is_scored(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scoring does not change the answer."""
    runner: Runner = request.getfixturevalue(fixture)
    for prompt in mixed_prompts(runner)[2::20]:
        plain, found = runner.generate(prompt, 20), []
        for rows in (64, 7, 33):
            with monkeypatch.context() as patch:
                score_in_windows(patch, rows)
                result = runner.generate(prompt, 20, prompt_logprobs=20)
            assert result.token_ids == plain.token_ids, (len(prompt), rows)
            found.append(result.prompt_logprobs)
        assert found[0] is not None and [one.id for one in found[0]] == prompt
        assert found[1] == found[0] and found[2] == found[0], len(prompt)


def score_in_windows(patch: pytest.MonkeyPatch, rows: int) -> None:
    """Score at most `rows` rows at once, and run the prefill in the same chunks as ever."""
    run_window = PromptScoring.run_window

    def windowed(scoring: PromptScoring) -> list[TokenLogprobs]:
        with patch.context() as during:
            during.setattr(scoring._target, "max_rows", rows)
            return run_window(scoring)

    patch.setattr(PromptScoring, "run_window", windowed)


def test_a_warm_up_records_all_rounds_and_changes_no_token(
    cuda_artifact: Path, recorded: Runner, launched: Runner
) -> None:
    fresh = load_artifact(cuda_artifact)
    done = fresh.warm_up(1, 4)
    assert (done.rounds, done.recorded) == (1, 1) and done.bytes is not None
    assert launched.warm_up(1, 4).recorded == 0
    for prompt in mixed_prompts(fresh)[::20]:
        expected = recorded.generate(prompt, 20, 4).token_ids
        assert fresh.generate(prompt, 20, 4).token_ids == expected, len(prompt)


def test_the_pair_answers_and_drafts_well(recorded: Runner) -> None:
    problems = list(itertools.islice(stories(31, "test"), 20))
    results = [recorded.generate(story.question, 200, 4) for story in problems]
    answers = [final_answer(result.text or "") for result in results]
    assert sum(a == story.final for a, story in zip(answers, problems, strict=True)) >= 18
    assert sum(r.stats.emitted for r in results) / sum(r.stats.rounds for r in results) >= 4.5


def copies_to_host(runner: Runner, round_: Round, rounds: int) -> int:
    """Device-to-host copies of `rounds` rounds as the loop runs them."""
    prefill(round_, list(range(5, 105)), Stats(chain_len=4))
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(rounds):
            round_.run().tolist()
    return sum("Memcpy DtoH" in event.name for event in profiled.events())


@pytest.mark.parametrize("fixture", ["recorded", "launched"])
def test_a_round_copies_once_to_the_host(fixture: str, request: pytest.FixtureRequest) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    chosen = runner.adaptive_schedule(True).rounds
    for round_ in (runner.round(4), chosen[Shape.chain(4)], chosen[AUTO_TREES[0]]):
        assert copies_to_host(runner, round_, 10) == 10
        with runner.batch.sampler.reserve(SamplingParams(logprobs=20)):
            assert copies_to_host(runner, round_, 10) == 10


def test_weights_and_caches_lie_on_the_device_once(recorded: Runner) -> None:
    executor = recorded.executor
    assert isinstance(executor, AotiExecutor)
    parts = executor.weights.bytes_by_part()
    stored = {w.storage_key: w for m in executor.methods.values() for w in m.weights}.values()
    assert set(parts) == {"target weights", "target cache", "draft weights", "draft cache"}
    caches = sum(w.storage_nbytes for w in stored if w.fqn in executor.weights.caches)
    assert parts["target cache"] + parts["draft cache"] == caches
    assert sum(parts.values()) <= sum(w.storage_nbytes for w in stored)
