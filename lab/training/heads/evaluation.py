"""How well a head drafts its target's greedy answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.lab.training.heads.chains import TTT_STEPS, chain_choices, shift
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget
from eagle_aot.lab.training.loop import autocast

CHAIN_LENS = (2, 4, 7)
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class HeadScore:
    """The `right` ones among `drafted` tokens of some texts, by step, and what rounds would emit.

    `rounds` and `emitted` count verify rounds and the tokens that they emit, by chain length.
    """

    right: list[int]
    drafted: list[int]
    rounds: dict[int, int]
    emitted: dict[int, int]

    @classmethod
    def total(cls, scores: Sequence["HeadScore"]) -> "HeadScore":
        """Return the sum of at least one score."""
        return cls(
            [sum(column) for column in zip(*(s.right for s in scores), strict=True)],
            [sum(column) for column in zip(*(s.drafted for s in scores), strict=True)],
            {k: sum(s.rounds[k] for s in scores) for k in CHAIN_LENS},
            {k: sum(s.emitted[k] for s in scores) for k in CHAIN_LENS},
        )

    @property
    def accuracy_by_step(self) -> list[float]:
        """The share of drafts that is right, by step."""
        pairs = zip(self.right, self.drafted, strict=True)
        return [round(right / max(drafted, 1), 4) for right, drafted in pairs]

    @property
    def tau(self) -> dict[str, float]:
        """Tokens per verify round, by chain length."""
        return {str(k): round(self.emitted[k] / max(self.rounds[k], 1), 4) for k in CHAIN_LENS}

    def summary(self) -> dict[str, Any]:
        """Return what a training's record keeps."""
        return {"accuracy_by_step": self.accuracy_by_step, "tau": self.tau}


def evaluate_head(draft: Eagle3Draft, target: FrozenTarget, corpus: Corpus) -> HeadScore:
    """Score a head on at least one greedy answer; a draft is right if it is the target's token.

    Up to the first wrong one, a drafted chain equals the teacher-forced one, so the accepted
    lengths are exact.
    """
    return HeadScore.total(list(_scores(draft, target, corpus)))


@torch.no_grad()
def _scores(draft: Eagle3Draft, target: FrozenTarget, corpus: Corpus) -> Iterator[HeadScore]:
    by_length = corpus.lengths.argsort(stable=True)
    for rows in by_length.split(ROWS_AT_ONCE):
        batch = corpus.batch(rows)
        _, taps = target.read(batch.tokens, draft.tap_layers)
        right, drafted = [], []
        with autocast(target.device):
            choices = chain_choices(draft, batch.tokens, taps, TTT_STEPS)
        for step, chosen in enumerate(choices):
            drafted.append(shift(batch.answer, step + 2))
            right.append((chosen == shift(batch.tokens, step + 2)) & drafted[-1])
        hits = torch.stack(right)
        rounds, emitted = {}, {}
        for chain_len in CHAIN_LENS:
            accepted = hits[:chain_len].long().cumprod(0).sum(0).tolist()
            ends, starts = corpus.lengths[rows].tolist(), corpus.answer_starts[rows].tolist()
            rounds[chain_len], emitted[chain_len] = _replay(accepted, starts, ends)
        yield HeadScore(
            hits.sum((1, 2)).tolist(), torch.stack(drafted).sum((1, 2)).tolist(), rounds, emitted
        )


def _replay(accepted: list[list[int]], starts: list[int], ends: list[int]) -> tuple[int, int]:
    """Return (rounds, tokens emitted) of decoding texts with `accepted` drafts at each position."""
    rounds = emitted = 0
    for lengths, start, end in zip(accepted, starts, ends, strict=True):
        # Prefill emits x_start; the first anchor is the slot before it.
        length = start + 1
        while length < end:
            gain = min(lengths[length - 2] + 1, end - length)
            length, emitted, rounds = length + gain, emitted + gain, rounds + 1
    return rounds, emitted
