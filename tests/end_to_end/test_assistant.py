"""An assistant through a real `.pte`: the text is that of plain decoding, however it is drafted."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from eagle_aot.artifact import Manifest
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.frontend.generation import Result
from support.golden_cases import golden_case

_, CASE = golden_case("mtp/two_layers")
PROMPT, TEXT = CASE["input.tokens"].tolist(), CASE["expected.text"].tolist()
ROOM = len(TEXT) - len(PROMPT)
SAMPLED = {"temperature": 1.0, "seed": 7, "top_k": 50}
DRAFTS: list[dict[str, Any]] = [
    *({"chain_len": length} for length in (1, 4, 15)),
    *({"tree": tree} for tree in ((1, 16, 16), (3, 3, 9), (15, 2, 30), (6, 8, 32), "auto")),
]


def prompts(runner: Runner) -> list[list[int]]:
    """Of every length that is cut in another way, none of which the assistant has seen."""
    rng, window = random.Random(3), runner.constants.sliding_window
    lengths = [1, 2, window, window + 1, 64, 65, 100, 130]
    noise = [[rng.randrange(3, runner.constants.vocab_size) for _ in range(n)] for n in lengths]
    return [*noise, PROMPT]


def test_rounds_are_those_of_transformers(assistant_runner: Runner) -> None:
    result = assistant_runner.generate(PROMPT, ROOM, chain_len=5)
    assert result.token_ids == TEXT[len(PROMPT) :] and result.drafter == "gemma4-assistant"
    accepted = CASE["expected.round_accepted"]
    assert result.stats.rounds == len(accepted)
    found = torch.tensor(result.stats.accepted_lengths) - accepted[:-1].bincount(minlength=6)
    assert sorted(found.tolist()) == [0, 0, 0, 0, 0, 1], "the last one is cut by the text's end"


def test_no_draft_changes_a_token(assistant_runner: Runner) -> None:
    for i, prompt in enumerate(prompts(assistant_runner)):
        plain = assistant_runner.generate(prompt, 24, speculate=False)
        drafts = DRAFTS[i % len(DRAFTS)]
        found = assistant_runner.generate(prompt, 24, **drafts)
        assert found.token_ids == plain.token_ids, (len(prompt), drafts)


@pytest.mark.parametrize("drafts", [DRAFTS[1], DRAFTS[6]], ids=str)
def test_nor_does_one_that_is_sampled(drafts: dict[str, Any], assistant_runner: Runner) -> None:
    plain = assistant_runner.generate(PROMPT, ROOM, speculate=False, **SAMPLED)
    found = assistant_runner.generate(PROMPT, ROOM, **drafts, **SAMPLED)
    assert found.token_ids == plain.token_ids != TEXT[len(PROMPT) :]
    assert found.stats.accepted > 0


@pytest.mark.parametrize("drafts", [DRAFTS[1], DRAFTS[6]], ids=str)
def test_nor_does_a_neighbour(drafts: dict[str, Any], assistant_runner: Runner) -> None:
    runner, every = assistant_runner, prompts(assistant_runner)[4:]
    alone = [runner.generate(prompt, 24, speculate=False).token_ids for prompt in every]
    found = list(runner.generate_many(every, max_new_tokens=24, **drafts))
    assert all(isinstance(result, Result) for result in found)
    assert [result.token_ids for result in found if isinstance(result, Result)] == alone


def test_a_text_goes_on_from_rows_that_are_kept(assistant_runner: Runner) -> None:
    runner = assistant_runner
    longer = [*PROMPT, *runner.generate(PROMPT, 16, chain_len=4).token_ids, 5, 6, 7]
    plain = runner.generate(longer, 16, speculate=False).token_ids
    runner.generate(PROMPT, 16, tree=(4, 4, 16), reuse=True)
    assert runner.generate(longer, 16, chain_len=4, reuse=True).token_ids == plain


def test_a_text_goes_on_from_rows_of_a_plain_one(assistant_runner: Runner) -> None:
    """It reads what the target has stored, and need not have been shown it."""
    text = TEXT[: len(PROMPT) + 14]
    assistant_runner.generate(PROMPT, 16, speculate=False)
    behind = assistant_runner.generate(text, 16, chain_len=4, reuse=True)
    fresh = assistant_runner.generate(text, 16, chain_len=4)
    assert behind.token_ids == fresh.token_ids and behind.cached_tokens == len(text) - 1
    assert behind.stats.accepted_lengths == fresh.stats.accepted_lengths
    assert fresh.stats.accepted > 0


def test_the_artifact_says_what_it_holds(assistant_artifact: Path) -> None:
    manifest = Manifest.read(assistant_artifact)
    assert manifest.drafter == "gemma4-assistant"
    assert manifest.methods == ["prefill", "target_verify", "mtp_decode", "copy_rows"]
    assert not [cache for cache in manifest.caches if cache.startswith("draft.")]
    assert manifest.decisions["caches"]["draft_bytes_of_a_sequence"] == 0
    assert manifest.decisions["flags"]["position_offset"]["value"] == 1
    assert load_artifact(assistant_artifact, drafter="ngram").generate(PROMPT, 8).drafter == "ngram"
    with pytest.raises(SettingError, match=r"'eagle3': .* has no draft_decode"):
        load_artifact(assistant_artifact, drafter="eagle3")


def test_the_command_counts_its_drafts_as_any_others(
    assistant_artifact: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text(json.dumps({"token_ids": PROMPT}))
    arguments = [str(assistant_artifact), "--prompts-jsonl", str(lines), "--json"]
    result = CliRunner().invoke(main, [*arguments, "--chain-len", "5", "--max-new-tokens", "48"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[0])
    assert found["drafter"] == "gemma4-assistant" and found["rounds"] == 16
