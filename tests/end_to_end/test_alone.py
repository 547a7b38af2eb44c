"""A target exported without a head: its text is transformers', and prompt lookup drafts it. Its
second export has the bits of the first."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import PreTrainedModel

from eagle_aot.artifact import NGRAM, TARGET_METHODS, Manifest
from eagle_aot.export import cli as export
from eagle_aot.export.loading.provenance import NO_CHECKPOINT
from eagle_aot.lab.bench import cli as bench
from eagle_aot.lab.bench import rounds
from eagle_aot.lab.checks import cli as check
from eagle_aot.runtime_runner import Runner, cli, load_artifact
from support.pre_norm_oracle import random_pre_norm, save
from support.random_pair import add_tokenizer
from support.refusals import beside_stages, refuses

TOKENS = 24
NEAR = 1e-4
"""What two orders of sums make of a log probability."""
PROMPTS = [[5, 9, 300, 8], [7] * 40, [11, 12, 13] * 30, list(range(100, 180))]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A llama of one layer, which is lowered quickly."""
    changes: dict[str, Any] = {"vocab_size": 1024, "num_hidden_layers": 1, "eos_token_id": None}
    return random_pre_norm("llama", **changes)


@pytest.fixture(scope="module")
def alone_artifact(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export as a user without a head makes it."""
    directory = tmp_path_factory.mktemp("alone")
    add_tokenizer(save(model, directory / "target"))
    artifact = directory / "artifact"
    checkpoint = [
        "--target-model",
        "auto",
        "--target-dir",
        directory / "target",
        "--backend",
        "xnnpack",
    ]
    options = ["--max-seq-len", "160", "--output-dir", artifact]
    done = CliRunner().invoke(export.main, [str(word) for word in (*checkpoint, *options)])
    assert done.exit_code == 0, done.output
    *plan, line = beside_stages(done.stderr).splitlines()
    assert plan[0].startswith("llama for xnnpack needs ")
    assert line == "llama: no draft head, so ngram will draft; --draft-model names a head"
    assert done.stdout.startswith(f"{artifact}/: ") and "drafter ngram" in done.stdout
    assert "drafter 0.0 MB), all 1 of this artifact " in done.stdout
    return artifact


@pytest.fixture(scope="module")
def runner(alone_artifact: Path) -> Runner:
    return load_artifact(alone_artifact)


def continued(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """Return the greedy answer of transformers."""
    found = model.generate(
        torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None
    )
    return found[0, len(prompt) :].tolist()


def test_text_is_that_of_transformers_with_drafts_and_without(
    model: PreTrainedModel, runner: Runner
) -> None:
    accepted = 0
    for prompt in PROMPTS:
        expected = continued(model, prompt)
        assert runner.generate(prompt, TOKENS, speculate=False).token_ids == expected
        for chain_len in (1, 4, 15, "auto"):
            result = runner.generate(prompt, TOKENS, chain_len)
            assert (result.token_ids, result.drafter) == (expected, NGRAM)
            accepted += result.stats.accepted
    assert accepted > 0, "some draft is right"


def test_log_probabilities_of_prompts_are_those_of_transformers(
    model: PreTrainedModel, runner: Runner
) -> None:
    """In windows of any size, the likeliest too; scoring does not change the answer."""
    for prompt in PROMPTS:
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, :-1].double()
        expected = logits.log_softmax(dim=-1)
        result = runner.generate(prompt, 4, prompt_logprobs=5)
        assert result.token_ids == continued(model, prompt)[:4] and result.logprobs is None
        assert result.prompt_logprobs is not None
        first, *others = result.prompt_logprobs
        assert (first.id, first.logprob, first.top, first.offset) == (prompt[0], None, (), 0)
        assert [one.id for one in others] == prompt[1:]
        for one, row in zip(others, expected, strict=True):
            assert one.logprob == pytest.approx(float(row[one.id]), abs=NEAR)
            assert [found for _, found in one.top] == pytest.approx(row.topk(5).values, abs=NEAR)
            assert [found for _, found in one.top] == pytest.approx(
                [float(row[token]) for token, _ in one.top], abs=NEAR
            )


def test_the_manifest_describes_a_target_alone(alone_artifact: Path) -> None:
    manifest = Manifest.read(alone_artifact)
    assert (manifest.drafter, manifest.options["drafter"]) == (NGRAM, NGRAM)
    assert tuple(manifest.methods) == tuple(manifest.shapes) == TARGET_METHODS
    assert manifest.caches and all(name.startswith("target.") for name in manifest.caches)
    assert manifest.draft == NO_CHECKPOINT and manifest.self_test is None
    assert manifest.constants["get_hidden_size"] == 0
    assert manifest.constants["get_draft_vocab_size"] == 1024
    shown = CliRunner().invoke(check.main, [str(alone_artifact), "--verify"])
    assert shown.exit_code == 0 and NGRAM in shown.output


def test_a_head_that_is_not_there_is_refused(alone_artifact: Path) -> None:
    arguments = [str(alone_artifact), "--prompt", "a", "--drafter", "eagle3"]
    refuses(CliRunner().invoke(cli.main, arguments), "has no draft_decode: leave it out")


def test_eagle_check_compares_outputs_and_judges_no_head(alone_artifact: Path) -> None:
    done = CliRunner().invoke(check.main, [str(alone_artifact), "--self-test", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["verdict"], found["prompts"], found["identical"]) == ("fits", 10, 10)
    assert found["message"].startswith(f"{found['stats']['tau']:.2f} tokens per round")


def test_eagle_bench_times_rounds(alone_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "read_bandwidth", lambda clock, device: 1e10)
    quick = ["--repeats", "1", "--chain-lens", "1,3", "--contexts", "20", "--rows", "1,4"]
    done = CliRunner().invoke(bench.main, [str(alone_artifact), *quick, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["drafter"] == NGRAM
    (context,) = found["contexts"]
    assert [round_["chain_len"] for round_ in context["rounds"]] == [0, 1, 3]


@pytest.mark.slow
def test_a_repeated_export_is_the_same_bit_for_bit(alone_artifact: Path, tmp_path: Path) -> None:
    target_dir = alone_artifact.parent / "target"
    arguments = [
        *("--reproduce", alone_artifact / "manifest.json", "--json"),
        *("--target-dir", target_dir, "--output-dir", tmp_path / "again"),
    ]
    result = CliRunner().invoke(export.main, [str(word) for word in arguments])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["identical"] and found["decisions"] == found["environment"] == {}
    for name in Manifest.read(alone_artifact).files:
        assert (tmp_path / "again" / name).read_bytes() == (alone_artifact / name).read_bytes()
    # Nothing in an artifact says where it was made, or of what.
    text = (alone_artifact / "manifest.json").read_text()
    assert str(target_dir.parent) not in text and str(Path.home()) not in text
