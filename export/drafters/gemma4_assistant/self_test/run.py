"""An assistant's self-test from token ids to verdict."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.export.drafters.gemma4_assistant.self_test.reading import (
    Reading,
    chosen_reading,
    other_readings,
)
from eagle_aot.export.drafters.self_test.comparison import is_enough
from eagle_aot.export.drafters.self_test.score import Score, score_steps
from eagle_aot.export.drafters.self_test.text import Text, continue_greedily, fitting
from eagle_aot.export.drafters.self_test.verdict import Entry, how_measured, judge
from eagle_aot.export.drafters.verdict import Verdict, unknown
from eagle_aot.export.pair import Pair
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.step import Step, chain_tail


def self_test(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    device: torch.device,
    begin: Callable[[str], None],
) -> Verdict:
    """Rank the readings of a pair's assistant, as `HeadKind` says.

    Each text is drafted while its keys are in the target's caches.
    """
    target, draft = pair.target, pair.draft
    assert isinstance(target, Gemma4Target) and isinstance(draft, Gemma4Assistant)
    readings = [chosen_reading(draft), *other_readings(draft, target)]
    scores: list[list[tuple[Score, Score]]] = []
    try:
        for prompt in fitting(prompts, target):
            tapped = draft.tap_layers
            text = continue_greedily(target, prompt, tapped, MAX_NEW_TOKENS, eos_ids, device)
            if text.slots > text.first_anchor:
                scores.append([score(draft, target, reading, text) for reading in readings])
    finally:
        target.set_eagle_tap_layers(draft.tap_layers)
        target.reset_cache()
    return ranked(readings, scores)


def ranked(readings: Sequence[Reading], scores: list[list[tuple[Score, Score]]]) -> Verdict:
    """Of every text the scores of all readings, the chosen one first, and of their controls."""
    if not scores:
        return unknown("no prompt has an answer of two tokens within the context")
    chosen, *others = [
        Entry(
            reading=reading,
            score=Score.total([found for found, _ in of_texts]),
            control=Score.total([control for _, control in of_texts]),
        )
        for reading, of_texts in zip(readings, zip(*scores, strict=True), strict=True)
    ]
    if not is_enough(chosen.score):
        return unknown(f"{len(chosen.score.labels)} positions are too few to tell")
    return judge(chosen, others, how_measured(chosen.score, len(scores)))


def score(
    draft: Gemma4Assistant, target: Gemma4Target, reading: Reading, text: Text
) -> tuple[Score, Score]:
    """Of a reading, and of its control."""
    found = (
        score_steps(
            chain_logits(draft, target, one, text, CHAIN_LEN),
            text,
            draft.target_ids,
            target.vocab_size,
        )
        for one in (reading, reading.control())
    )
    first, second = found
    return first, second


@torch.no_grad()
def chain_logits(
    draft: Gemma4Assistant, target: Gemma4Target, reading: Reading, text: Text, steps: int
) -> Iterator[Tensor]:
    """Yields the logits of every step of the chains from all anchors, float32 [A, V].

    Every step is handed the token that the target chose, so a chain is what drafting would give up
    to its first wrong draft. Row a of step s predicts token `text.first_anchor` + a + s + 2; rows
    for which there is none hold no meaning.
    """
    device, last = text.tokens.device, text.tokens.shape[1] - 1
    anchors = torch.arange(text.first_anchor, text.slots, device=device).unsqueeze(0)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    step = Step(anchors, first, chain_tail(anchors))
    states = anchored_states(draft, reading, text)
    for ahead in range(1, steps + 1):
        tokens = text.tokens[:, (anchors[0] + ahead).clamp(max=last)]
        logits, states = draft.run(target, tokens, states, step, reading.wiring)
        yield logits[0]


def anchored_states(draft: Gemma4Assistant, reading: Reading, text: Text) -> Tensor:
    """The target's state at each anchor [1, A, Bt], as late as the reading has it."""
    streams = text.taps(draft.tap_layers)
    states = streams if reading.wiring.raw_state else draft.fuse(streams)
    late = text.slots // 2 if reading.late is None else reading.late
    return states.roll(late, dims=1)[:, text.first_anchor :]
