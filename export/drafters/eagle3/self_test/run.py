"""The self-test from token ids to verdict."""

from collections.abc import Callable, Sequence

import torch

from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test.chain import chain_logits
from eagle_aot.export.drafters.eagle3.self_test.reading import (
    Reading,
    chosen_reading,
    other_readings,
)
from eagle_aot.export.drafters.self_test.comparison import is_better, is_enough
from eagle_aot.export.drafters.self_test.score import Score, score_steps
from eagle_aot.export.drafters.self_test.text import Text, continue_greedily, fitting
from eagle_aot.export.drafters.self_test.verdict import Entry, how_measured, judge
from eagle_aot.export.drafters.verdict import Verdict, unknown
from eagle_aot.export.pair import Pair


def self_test(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    device: torch.device,
    begin: Callable[[str], None],
) -> Verdict:
    """Rank the readings of a pair's head, as `HeadKind` says."""
    texts = target_texts(pair, prompts, eos_ids, device)
    begin("self-test: drafts")
    assert isinstance(pair.draft, Eagle3Draft)
    return rank(pair.draft, texts, pair.target.num_hidden_layers)


def target_texts(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    device: torch.device,
) -> list[Text]:
    """The target's answers, where the context has room for one that can be drafted."""
    target, taps = pair.target, pair.draft.tap_layers
    near = {tap + step for tap in taps for step in (-1, 0, 1)}
    boundaries = sorted(near & set(range(target.num_hidden_layers + 1)))
    try:
        texts = [
            continue_greedily(target, prompt, boundaries, MAX_NEW_TOKENS, eos_ids, device)
            for prompt in fitting(prompts, target)
        ]
    finally:
        target.set_eagle_tap_layers(taps)
        target.reset_cache()
    return [text for text in texts if text.slots > text.first_anchor]


def rank(draft: Eagle3Draft, texts: Sequence[Text], num_layers: int) -> Verdict:
    """Every reading on every text."""
    if not texts:
        return unknown("no prompt has an answer of two tokens within the context")
    chosen = chosen_reading(draft)
    measured = score(draft, chosen, texts)
    if not is_enough(measured):
        return unknown(f"{len(measured.labels)} positions are too few to tell")
    found = Entry(reading=chosen, score=measured, control=score(draft, chosen.control(), texts))
    others = [
        _entry(draft, reading, texts, measured) for reading in other_readings(draft, num_layers)
    ]
    return judge(found, others, how_measured(measured, len(texts)))


def score(draft: Eagle3Draft, reading: Reading, texts: Sequence[Text]) -> Score:
    """Of all texts together."""
    return Score.total([score_text(draft, reading, text, CHAIN_LEN) for text in texts])


def score_text(draft: Eagle3Draft, reading: Reading, text: Text, steps: int) -> Score:
    """Chains of `steps` drafts from every anchor of a text, which has at least one."""
    chains = chain_logits(draft, reading, text, steps)
    return score_steps(chains, text, reading.target_ids, draft.config.vocab_size)


def _entry(draft: Eagle3Draft, reading: Reading, texts: Sequence[Text], chosen: Score) -> Entry:
    """With a control where it drafts better than the chosen one."""
    found = score(draft, reading, texts)
    if not is_better(chosen, found):
        return Entry(reading=reading, score=found)
    return Entry(reading=reading, score=found, control=score(draft, reading.control(), texts))
