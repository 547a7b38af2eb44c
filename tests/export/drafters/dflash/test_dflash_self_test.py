"""What the self-test says of a DFlash head, and of ones that are read in another way."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.export.drafters.dflash.kind import self_test
from eagle_aot.export.drafters.dflash.self_test.blocks import block_logits
from eagle_aot.export.drafters.dflash.self_test.reading import chosen_reading
from eagle_aot.export.drafters.self_test.comparison import log_gain
from eagle_aot.export.drafters.self_test.text import target_texts
from eagle_aot.export.drafters.self_test.verdict import Ranking
from eagle_aot.targets.step import chain_step
from support.golden_cases import golden_case
from support.heads.dflash import CASE, copied_head, dflash_pair

TEXT = golden_case("dflash/qwen3_full")[1]["expected.text"].tolist()
PROMPTS = [TEXT[:length] for length in range(40, 57, 2)]
"""Of the one text that the head was fitted to."""
OWN = {"mask_token_id": 319, "target_layer_ids": [1, 3, 4]}


def judged(head: Path) -> Ranking:
    pair, target, draft = dflash_pair(head)
    verdict = self_test(pair, PROMPTS, (), torch.device("cpu"), lambda stage: None)
    assert target.tap_layers == draft.tap_layers, "it leaves the pair as it was"
    assert isinstance(verdict, Ranking)
    return verdict


@pytest.fixture(scope="module")
def found() -> Ranking:
    return judged(CASE / "draft")


def test_the_reading_that_made_the_case_is_clearly_the_best(found: Ranking) -> None:
    assert found.kind == "fits" and found.entries[0] is found.chosen
    gains = [log_gain(found.chosen.score, entry.score).value for entry in found.entries[1:]]
    assert len(gains) == 8 and max(gains) < -0.05


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"target_layer_ids": [1, 2, 4]}, "taps 2,4,5 (--tap-layers 2,4,5)"),
        ({"target_layer_ids": [0, 3, 4]}, "taps 2,4,5 (--tap-layers 2,4,5)"),
        ({"target_layer_ids": [2, 4, 5]}, "taps 2,4,5 (--tap-layers 2,4,5)"),
    ],
    ids=["one tap", "the first", "all by one"],
)
def test_taps_off_by_one_are_named(own: dict[str, Any], named: str, tmp_path: Path) -> None:
    verdict = judged(copied_head(tmp_path, dflash_config=OWN | own))
    assert verdict.kind == "other reading" and f"clearly better: {named}" in verdict.message


def test_another_mask_drafts_worse_and_no_reading_names_it(found: Ranking, tmp_path: Path) -> None:
    verdict = judged(copied_head(tmp_path, dflash_config=OWN | {"mask_token_id": 7}))
    assert verdict.kind in ("fits", "chance")
    assert verdict.chosen.score.mean_nats > found.chosen.score.mean_nats + 0.5


@torch.no_grad()
def test_it_drafts_as_rounds_do(tmp_path: Path) -> None:
    """In sliding layers too: every anchor's block at once is each block by itself."""
    kinds, window = ["sliding_attention", "full_attention"], 24
    head = copied_head(tmp_path, layer_types=kinds, sliding_window=window)
    _, target, draft = dflash_pair(head)
    (text,) = target_texts(target, draft.tap_layers, PROMPTS[:1], (), torch.device("cpu"))
    steps = list(block_logits(draft, chosen_reading(draft), text, 4))
    features = draft.fuse(text.taps(draft.tap_layers))
    for row, anchor in enumerate(range(text.first_anchor, text.slots)):
        draft.store(features[:, : anchor + 1], chain_step(torch.arange(anchor + 1)))
        bonus = text.tokens[:, anchor + 1 : anchor + 2].expand(1, 6)
        logits = draft.run(bonus, chain_step(torch.arange(anchor + 1, anchor + 7)))
        for step, found in enumerate(steps):
            assert (found[row] - logits[0, step + 1]).abs().max() < 1e-4
