"""What the self-test reports of DFlash heads and Gemma 4's assistants, which have one reading."""

import shutil
from pathlib import Path

import pytest
import torch

from eagle_aot.export.drafters.dflash.kind import DFlashReading
from eagle_aot.export.drafters.registry import HEADS
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.score import score
from eagle_aot.export.self_test.text import target_texts
from eagle_aot.export.self_test.verdict import Verdict, rank
from support.checkpoint_edits import Tensors, edit_tensors
from support.golden_cases import GOLDEN, golden_case
from support.heads import dspark
from support.heads.assistants import assistant_pair
from support.heads.dflash import CASE, copied_head, dflash_pair
from support.heads.dflash2 import SPECULATORS, dflash2_pair
from support.pairs import target_of

CPU = torch.device("cpu")
ASSISTANT = GOLDEN / "mtp" / "two_layers"


def prompts(case: str, lengths: range) -> list[list[int]]:
    """Beginnings of the one text that a golden head was fitted to."""
    text = golden_case(case)[1]["expected.text"].tolist()
    return [text[:length] for length in lengths]


DFLASH_PROMPTS = prompts("dflash/qwen3_full", range(40, 57, 2))
DFLASH2_PROMPTS = prompts(f"dflash2/{SPECULATORS}", range(40, 57, 2))
ASSISTANT_PROMPTS = prompts("mtp/two_layers", range(40, 65, 3))


def judged(pair: Pair, token_ids: list[list[int]]) -> Verdict:
    texts = target_texts(pair.target, pair.draft.tap_layers, token_ids, (), CPU)
    assert target_of(pair).tap_layers == pair.draft.tap_layers
    return rank(HEADS[pair.draft.kind].readings(pair), texts, pair.target.vocab_size)


def shuffle_columns(name: str, directory: Path) -> Path:
    """Let a projection read features that lie elsewhere."""

    def shuffle(tensors: Tensors) -> None:
        order = torch.randperm(tensors[name].shape[1], generator=torch.Generator().manual_seed(0))
        tensors[name] = tensors[name][:, order].contiguous()

    edit_tensors(directory, shuffle)
    return directory


def test_a_dflash_head_drafts_better_than_chance() -> None:
    pair, *_ = dflash_pair(CASE / "draft")
    verdict = judged(pair, DFLASH_PROMPTS)
    assert verdict.kind == "fits" and len(verdict.entries) == 1
    assert verdict.chosen and verdict.chosen.score.rounds.tau > 2
    assert verdict.message.startswith("first drafts are right ")


@pytest.mark.slow
def test_a_dflash2_head_is_scored_by_its_candidates() -> None:
    """Which draft better than the logits alone."""
    pair, _, draft = dflash2_pair(SPECULATORS)
    texts = target_texts(pair.target, pair.draft.tap_layers, DFLASH2_PROMPTS, (), CPU)
    verdict = judged(pair, DFLASH2_PROMPTS)
    assert verdict.chosen is not None and verdict.chosen.score.rounds.tau > 1.5
    by_logits = DFlashReading(target_ids=draft.target_ids, draft=draft)
    assert score(by_logits, texts, 320).rounds.tau < verdict.chosen.score.rounds.tau


@pytest.mark.parametrize("case", [dspark.DEEPSPEC, dspark.SPECULATORS])
def test_a_dspark_head_is_scored_by_the_drafts_of_the_reference(case: str) -> None:
    """Of every round, up to the first wrong one."""
    pair, _, draft = dspark.dspark_pair(case)
    _, numbers = golden_case(f"dspark/{case}")
    prompt = numbers["input.tokens"].tolist()
    (text,) = target_texts(pair.target, draft.tap_layers, [prompt], (), CPU)
    (reading,) = HEADS["dspark"].readings(pair)
    chosen = torch.stack([reading.target_ids[x.argmax(-1)] for x in reading.chain_logits(text, 7)])
    anchor = 0
    accepted = numbers["expected.round_accepted"].tolist()
    for count, drafts in zip(accepted, numbers["expected.round_drafts"], strict=True):
        if anchor + 8 < chosen.shape[1]:
            assert torch.equal(chosen[: count + 1, anchor], drafts[: count + 1])
        anchor += count + 1
    assert chosen.shape[1] > 20 and anchor > 20


def test_a_dflash_head_of_another_target_is_worth_nothing(tmp_path: Path) -> None:
    pair, *_ = dflash_pair(shuffle_columns("fc.weight", copied_head(tmp_path)))
    verdict = judged(pair, DFLASH_PROMPTS)
    assert verdict.kind == "chance" and verdict.is_warning


def test_an_assistant_drafts_better_than_chance_and_its_record_has_the_counts() -> None:
    pair, *_ = assistant_pair(ASSISTANT)
    verdict = judged(pair, ASSISTANT_PROMPTS)
    assert verdict.kind == "fits"
    assert verdict.chosen and verdict.chosen.score.rounds.tau > 2
    (reading,) = verdict.to_json()["readings"]
    assert reading["chosen"] and reading["reached"][0] >= reading["accepted"][0] > 0


def test_an_assistant_of_another_target_is_worth_nothing(tmp_path: Path) -> None:
    directory = shutil.copytree(ASSISTANT / "assistant", tmp_path / "assistant")
    for name in ("pre_projection.weight", "model.embed_tokens.weight"):
        shuffle_columns(name, directory)
    pair, *_ = assistant_pair(ASSISTANT, directory)
    assert judged(pair, ASSISTANT_PROMPTS).kind == "chance"


def test_one_short_text_is_too_little_to_judge_by() -> None:
    pair, *_ = assistant_pair(ASSISTANT)
    verdict = judged(pair, ASSISTANT_PROMPTS[:1])
    assert verdict.kind == "unknown" and "too few to tell" in verdict.message


@torch.no_grad()
def test_an_assistant_drafts_from_the_keys_of_the_text_itself() -> None:
    """And not of the text that the target ran last."""
    pair, *_ = assistant_pair(ASSISTANT)
    texts = target_texts(pair.target, pair.draft.tap_layers, ASSISTANT_PROMPTS[:2], (), CPU)
    (reading,) = HEADS[pair.draft.kind].readings(pair)
    before = list(reading.chain_logits(texts[0], 4))
    list(reading.chain_logits(texts[1], 4))
    after = list(reading.chain_logits(texts[0], 4))
    assert all(torch.equal(*logits) for logits in zip(before, after, strict=True))
