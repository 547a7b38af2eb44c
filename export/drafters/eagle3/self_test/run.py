"""The self-test from token ids to verdict."""

from collections.abc import Callable, Sequence

import torch

from eagle_aot.common.self_test import CHAIN_LEN
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test.chain import chain_logits
from eagle_aot.export.drafters.eagle3.self_test.reading import (
    Reading,
    chosen_reading,
    other_readings,
)
from eagle_aot.export.drafters.self_test.rank import rank_readings
from eagle_aot.export.drafters.self_test.score import Score, score_steps
from eagle_aot.export.drafters.self_test.text import Text, target_texts
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
    texts = target_texts(pair.target, pair.draft.tap_layers, prompts, eos_ids, device)
    begin("self-test: drafts")
    assert isinstance(pair.draft, Eagle3Draft)
    return rank(pair.draft, texts, pair.target.num_hidden_layers)


def rank(draft: Eagle3Draft, texts: Sequence[Text], num_layers: int) -> Verdict:
    """Every reading on every text."""

    def score(reading: Reading) -> Score:
        return Score.total([score_text(draft, reading, text, CHAIN_LEN) for text in texts])

    return rank_readings(
        chosen_reading(draft), other_readings(draft, num_layers), len(texts), score
    )


def score_text(draft: Eagle3Draft, reading: Reading, text: Text, steps: int) -> Score:
    """Chains of `steps` drafts from every anchor of a text, which has at least one."""
    chains = chain_logits(draft, reading, text, steps)
    return score_steps(chains, text, reading.target_ids, draft.config.vocab_size)
