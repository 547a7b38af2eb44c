"""`eagle-check` over exported artifacts: rows, outputs, requests and sampling."""

import json
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.lab.checks import draws, engine, sampled_texts
from eagle_aot.lab.checks.cli import main
from eagle_aot.lab.checks.engine import LoneAnswer
from eagle_aot.lab.checks.rows import RowCheck, RowComparison
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.engine import Request
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from support.refusals import refuses

WRITE_PROMPTS = Path(__file__).parents[3] / "scripts" / "write_prompts.py"
FEW_REQUESTS = ("--count", "24", "--max-new-tokens", "12")
FEW_ROWS = ("--contexts", "17", "--count", "1", "--chain-lens", "3", "--max-new-tokens", "12")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Tom has 3 apples."}\n{"token_ids": [2, 40, 41]}\n')
    return path


@pytest.fixture
def random_prompts(tmp_path: Path) -> Path:
    rng = random.Random(2)
    lengths = [1, 2, 64, 65, 130, *(rng.randint(1, 170) for _ in range(10))]
    lines = [{"token_ids": [rng.randrange(200) for _ in range(length)]} for length in lengths]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_lossless_artifact_passes(tiny_artifact: Path, prompts: Path) -> None:
    options = "--chain-lens", "1,7", "--max-new-tokens", "20"
    result = run(tiny_artifact, "--lossless", prompts, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("4 of 4 outputs identical, ")


@pytest.mark.slow
def test_prompt_lookup_is_lossless(tiny_artifact: Path, prompts: Path) -> None:
    options = "--chain-lens", "3,auto", "--drafter", "ngram"
    result = run(tiny_artifact, "--lossless", prompts, *options)
    assert result.exit_code == 0
    assert result.stdout.startswith("4 of 4 outputs identical, ")


def test_written_prompts_are_decoded_losslessly(tiny_artifact: Path, tmp_path: Path) -> None:
    """Problems and texts of random tokens."""
    prompts = tmp_path / "prompts.jsonl"
    sizes = [str(prompts), "--problems", "28", "--noise", "12"]
    write_prompts = runpy.run_path(str(WRITE_PROMPTS))["main"]
    assert CliRunner().invoke(write_prompts, sizes).exit_code == 0
    result = run(tiny_artifact, "--lossless", prompts, "--max-new-tokens", "12", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["prompts"], report["identical"], report["differences"]) == (40, 40, [])
    assert report["tokens"] > 400


def test_changed_token_is_shown_with_its_gap(
    tiny_artifact: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Runner.generate

    def wrong(self: Runner, *arguments: Any, **options: Any) -> Any:
        result = generate(self, *arguments, **options)
        if options.get("speculate", True):
            result.token_ids[2] ^= 1
        return result

    monkeypatch.setattr(Runner, "generate", wrong)
    options = "--target", "gemma4-tiny", "--max-new-tokens", "20"
    result = run(tiny_artifact, "--lossless", prompts, *options, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["prompts"], report["compared"], report["identical"]) == (2, 2, 0)
    for number, one in enumerate(report["differences"], start=1):
        assert (one["prompt"], one["position"], one["chain_len"]) == (number, 2, 4)
        assert one["plain"] ^ 1 == one["speculative"]
        assert isinstance(one["plain_text"], str) and one["nats"] > 0  # plain is the likeliest
    lines = run(tiny_artifact, "--lossless", prompts, *options).stdout.splitlines()
    assert len(lines) == 3 and "token 2: plain " in lines[0] and "nats apart" in lines[0]


def test_directory_without_an_artifact_is_one_error_line(tmp_path: Path, prompts: Path) -> None:
    result = run(tmp_path, "--lossless", prompts)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "not an artifact" in result.stderr


def test_rows_and_outputs_of_random_prompts_are_compared(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tiny_artifact, "--rows", *FEW_ROWS, "--tree", "3,2,6")
    assert result.exit_code == 0, result.output
    assert "as nodes of a tree" in result.stdout
    assert "4 of 4 outputs identical" in result.stdout  # a chain and a tree, two drafters
    monkeypatch.setattr(RowCheck, "_padded", lambda self: RowComparison("changed", 4, 1))
    changed = run(tiny_artifact, "--rows", *FEW_ROWS, "--json")
    assert changed.exit_code == 1 and json.loads(changed.stdout)["different_rows"] == 2
    too_long = run(tiny_artifact, "--rows", "--contexts", "100000")
    refuses(too_long, "--contexts 100000 and 64 new tokens: the artifact's context is ")


def test_checks_run_in_their_order_and_stop_at_the_first_that_fails(
    tiny_artifact: Path, prompts: Path
) -> None:
    passed = run(tiny_artifact, "--lossless", prompts, "--verify", "--max-new-tokens", "4")
    assert passed.exit_code == 0
    assert passed.stdout.startswith("made by") and "2 of 2 outputs identical" in passed.stdout
    failed = run(tiny_artifact / "none", "--lossless", prompts, "--verify")
    refuses(failed, "no such artifact directory")


@pytest.mark.slow
def test_requests_among_others_answer_as_alone(batch_artifact: Path, random_prompts: Path) -> None:
    options = "--batch-sizes", "2,4", *FEW_REQUESTS
    result = run(batch_artifact, "--engine", random_prompts, *options)
    assert result.exit_code == 0, result.output
    two, four, last = result.stdout.splitlines()
    assert two.startswith("batch size 2: 24 requests in ") and two.endswith(" 0 differ")
    assert four.startswith("batch size 4: 24 requests in ") and four.endswith(" 0 differ")
    assert last == "0 of 48 texts differ"


def test_request_that_answers_differently_is_reported(
    batch_artifact: Path, random_prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_alone = engine.answer_alone

    def wrong(runner: Runner, request: Request) -> LoneAnswer:
        (first, *others), scores = answer_alone(runner, request)
        return LoneAnswer([first ^ 1, *others], scores[1:] or scores)

    monkeypatch.setattr(engine, "answer_alone", wrong)
    options = "--batch-sizes", "2", *FEW_REQUESTS
    result = run(batch_artifact, "--engine", random_prompts, *options)
    assert result.exit_code == 1
    *lines, last = result.stdout.splitlines()
    kinds = ": token 0 is ", " has other log probabilities"
    problems = [line for line in lines if any(kind in line for kind in kinds)]
    assert any(line.endswith("its prompt has other log probabilities") for line in problems)
    assert last == f"{len(problems)} of 24 texts differ"
    assert 16 <= len(problems) <= 24  # the others were cancelled before their first token


def test_what_does_not_fit_the_artifact_is_refused(batch_artifact: Path, prompts: Path) -> None:
    options = batch_artifact, "--engine", prompts, "--batch-sizes"
    refuses(run(*options, "8"), "--batch-sizes 8: this artifact takes 1 to 4")
    prompts.write_text('{"token_ids": [2]}\n{"prompt": "' + 100_000 * "word " + '"}')
    refuses(run(*options, "2"), "prompts.jsonl: prompt 2: the prompt has 500037 bytes")


def test_draws_and_sampled_texts_are_checked(
    tiny_artifact: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "SAMPLINGS", {"temperature 1": draws.SAMPLINGS["temperature 1"]})
    options = "--draws", "20000", "--count", "2", "--seeds", "1", "--max-new-tokens", "6"
    result = run(tiny_artifact, "--sampling", prompts, *options)
    assert result.exit_code == 0, result.output
    first, *ways = result.stdout.splitlines()
    assert first.startswith("temperature 1: chi-square ")
    assert {"in a batch", "in another process", "by prompt lookup"} <= {
        way.partition(":")[0] for way in ways
    }
    assert all(": 0 of 2 texts differ" in way for way in ways)
    changed = sampled_texts.SameTexts(2, 4, 2, [GenerationParams()])
    monkeypatch.setattr(sampled_texts, "compare_everywhere", lambda *_: {"changed": changed})
    assert run(tiny_artifact, "--sampling", prompts, *options).exit_code == 1
