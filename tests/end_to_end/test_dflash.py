"""A DFlash head through a real `.pte`: every way of drafting gives the text of plain decoding."""

import random
from pathlib import Path
from typing import Any

import pytest

from eagle_aot.artifact import Manifest
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.frontend.generation import Result
from support.golden_cases import golden_case

_, CASE = golden_case("dflash/qwen3_full")
PROMPT, TEXT = CASE["input.tokens"].tolist(), CASE["expected.text"].tolist()
ROOM = len(TEXT) - len(PROMPT)
SAMPLED = {"temperature": 1.0, "seed": 7, "top_k": 50}
CHAIN, TREE = {"chain_len": 5}, {"tree": (5, 4, 16)}
DRAFTS: list[dict[str, Any]] = [
    {"chain_len": 15}, {"chain_len": "auto"}, {"tree": (3, 3, 9)}, {"tree": (15, 2, 30)}
]  # fmt: skip


def test_rounds_are_the_reference_implementations(dflash_runner: Runner) -> None:
    result = dflash_runner.generate(PROMPT, ROOM, **CHAIN)
    assert result.token_ids == TEXT[len(PROMPT) :] and result.drafter == "dflash"
    accepted = CASE["expected.round_accepted"]
    assert result.stats.rounds == len(accepted)
    assert result.stats.accepted_lengths[5] >= int((accepted[:-1] == 5).sum()) > 0


def test_no_draft_changes_a_token(dflash_runner: Runner) -> None:
    rng = random.Random(3)
    for length, drafts in zip((1, 64, 65, 130), DRAFTS, strict=True):
        prompt = [rng.randrange(3, 300) for _ in range(length)]
        plain = dflash_runner.generate(prompt, 20, speculate=False)
        assert dflash_runner.generate(prompt, 20, **drafts).token_ids == plain.token_ids, drafts


@pytest.mark.parametrize("drafts", [CHAIN, TREE], ids=str)
def test_drafts_change_no_token_of_sampled_texts_or_batches(
    drafts: dict[str, Any], dflash_runner: Runner
) -> None:
    plain = dflash_runner.generate(PROMPT, 24, speculate=False, **SAMPLED)
    found = dflash_runner.generate(PROMPT, 24, **drafts, **SAMPLED)
    assert found.token_ids == plain.token_ids and found.stats.accepted > 0
    texts = [PROMPT, TEXT[: len(PROMPT) + 9]]
    both = list(dflash_runner.generate_many(texts, max_new_tokens=20, **drafts))
    assert all(isinstance(result, Result) for result in both)
    for text, result in zip(texts, both, strict=True):
        assert isinstance(result, Result)
        assert result.token_ids == TEXT[len(text) : len(text) + 20]


def test_a_text_goes_on_from_rows_that_are_kept(dflash_runner: Runner) -> None:
    longer = [*TEXT[: len(PROMPT) + 16], 5, 6, 7]
    plain = dflash_runner.generate(longer, 16, speculate=False).token_ids
    dflash_runner.generate(PROMPT, 16, **TREE, reuse=True)
    assert dflash_runner.generate(longer, 16, **CHAIN, reuse=True).token_ids == plain


@pytest.mark.parametrize(("drafter", "kept"), [("dflash", 0), ("ngram", len(PROMPT) + 13)])
def test_rows_of_a_plain_text_are_reused_only_if_the_drafter_needs_not_see_them(
    drafter: str, kept: int, dflash_artifact: Path
) -> None:
    """As many drafts are accepted either way: the head runs again what it was not shown."""
    runner, text = load_artifact(dflash_artifact, drafter=drafter), TEXT[: len(PROMPT) + 14]
    runner.generate(PROMPT, 16, speculate=False)
    reused = runner.generate(text, 16, **CHAIN, reuse=True)
    fresh = runner.generate(text, 16, **CHAIN)
    assert reused.token_ids == fresh.token_ids == TEXT[len(text) :][:16]
    assert reused.stats.accepted_lengths == fresh.stats.accepted_lengths
    assert (reused.cached_tokens, reused.drafter) == (kept, drafter) and fresh.stats.accepted > 0


def test_the_manifest_describes_the_head(dflash_artifact: Path) -> None:
    manifest = Manifest.read(dflash_artifact)
    assert manifest.drafter == "dflash"
    assert manifest.methods == [
        "prefill", "target_verify", "dflash_context", "dflash_block", "copy_rows"
    ]  # fmt: skip
    assert manifest.decisions["head"]["block_size"] == 6
