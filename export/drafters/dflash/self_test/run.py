"""A DFlash head's self-test from token ids to verdict."""

from collections.abc import Callable, Sequence

import torch

from eagle_aot.common.self_test import CHAIN_LEN
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash.self_test.blocks import block_logits
from eagle_aot.export.drafters.dflash.self_test.reading import (
    Reading,
    chosen_reading,
    other_readings,
)
from eagle_aot.export.drafters.self_test.rank import rank_readings
from eagle_aot.export.drafters.self_test.score import Score, score_steps
from eagle_aot.export.drafters.self_test.text import target_texts
from eagle_aot.export.drafters.verdict import Verdict
from eagle_aot.export.pair import Pair


def self_test(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    device: torch.device,
    begin: Callable[[str], None],
) -> Verdict:
    """Rank the readings of a pair's head, as `HeadKind` says."""
    target, draft = pair.target, pair.draft
    assert isinstance(draft, DFlashDraft)
    texts = target_texts(target, draft.tap_layers, prompts, eos_ids, device)
    begin("self-test: drafts")

    def score(reading: Reading) -> Score:
        blocks = ((text, block_logits(draft, reading, text, CHAIN_LEN)) for text in texts)
        ids, vocab_size = reading.target_ids, draft.config.vocab_size
        return Score.total([score_steps(steps, text, ids, vocab_size) for text, steps in blocks])

    return rank_readings(chosen_reading(draft), other_readings(draft, target), len(texts), score)
