"""The command that looks for outputs that speculation changed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import write_prompts
from check_lossless import last_logits, main
from eagle_aot.runtime_runner import Runner
from eagle_aot.targets import load_target
from support.gemma_oracle import random_gemma, random_tokens, save_text_layout


@pytest.mark.parametrize("length", [3, 8, 21])
def test_logits_are_those_of_transformers(length: int, tmp_path: Path) -> None:
    """Behind texts shorter and longer than the sliding window of 8."""
    model = random_gemma()
    target = load_target(save_text_layout(model, tmp_path), 32)
    for seed in (0, 1):  # the second text must see nothing of the first
        tokens = random_tokens(length, seed)
        expected = model(tokens).logits[0, -1]
        torch.testing.assert_close(
            last_logits(target, tokens[0].tolist()), expected, atol=1e-4, rtol=1e-4
        )


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Tom has 3 apples."}\n{"token_ids": [2, 40, 41]}\n')
    return path


def test_an_artifact_is_lossless(tiny_artifact: Path, prompts: Path) -> None:
    result = run(tiny_artifact, prompts, "--chain-lens", "1,7", "--max-new-tokens", "20")
    assert result.exit_code == 0
    assert result.stdout.startswith("4 of 4 outputs identical, ")
    assert result.stderr == ""


def test_it_is_with_another_drafter(tiny_artifact: Path, prompts: Path) -> None:
    result = run(tiny_artifact, prompts, "--chain-lens", "3,auto", "--drafter", "ngram")
    assert result.exit_code == 0
    assert result.stdout.startswith("4 of 4 outputs identical, ")


def test_problems_and_texts_of_random_tokens_are(tiny_artifact: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    how = [str(prompts), "--problems", "28", "--noise", "12"]
    assert CliRunner().invoke(write_prompts.main, how).exit_code == 0
    result = run(tiny_artifact, prompts, "--max-new-tokens", "12", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["prompts"], found["identical"], found["differences"]) == (40, 40, [])
    assert found["tokens"] > 400


def test_a_changed_token_is_shown_with_its_gap(
    tiny_artifact: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Runner.generate

    def wrong(self: Runner, *arguments: Any, **how: Any) -> Any:
        result = generate(self, *arguments, **how)
        if how.get("speculate", True):
            result.token_ids[2] ^= 1
        return result

    monkeypatch.setattr(Runner, "generate", wrong)
    arguments = tiny_artifact, prompts, "--target", "gemma4-tiny", "--max-new-tokens", "20"
    result = run(*arguments, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["prompts"], found["compared"], found["identical"]) == (2, 2, 0)
    for number, one in enumerate(found["differences"], start=1):
        assert (one["prompt"], one["position"], one["chain_len"]) == (number, 2, 4)
        assert one["plain"] ^ 1 == one["speculative"]
        assert isinstance(one["plain_text"], str) and one["nats"] > 0  # plain is the likeliest
    shown = run(*arguments).stdout.splitlines()
    assert len(shown) == 3 and "token 2: plain " in shown[0] and "nats apart" in shown[0]


def test_bad_arguments_are_one_line(tmp_path: Path, prompts: Path) -> None:
    result = run(tmp_path, prompts)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "not an artifact" in result.stderr
