"""How well a head drafts its target's greedy answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eagle_aot.lab.training.heads.corpus import Corpus, shift
from eagle_aot.lab.training.heads.draft import HeadDraft
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget
from eagle_aot.lab.training.heads.kinds import kind_of

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
            {k: sum(s.rounds[k] for s in scores) for k in scores[0].rounds},
            {k: sum(s.emitted[k] for s in scores) for k in scores[0].rounds},
        )

    @property
    def accuracy_by_step(self) -> list[float]:
        """The share of drafts that is right, by step."""
        pairs = zip(self.right, self.drafted, strict=True)
        return [round(right / max(drafted, 1), 4) for right, drafted in pairs]

    @property
    def tau(self) -> dict[str, float]:
        """Tokens per verify round, by chain length."""
        return {str(k): round(self.emitted[k] / max(n, 1), 4) for k, n in self.rounds.items()}

    def summary(self) -> dict[str, Any]:
        """Return what a training's record keeps."""
        return {"accuracy_by_step": self.accuracy_by_step, "tau": self.tau}


def evaluate_head(
    draft: HeadDraft, target: FrozenTarget, corpus: Corpus, chain_lens: Sequence[int] = CHAIN_LENS
) -> HeadScore:
    """Score a head on at least one greedy answer; a draft is right if it is the target's token.

    Up to the first wrong one, a drafted chain equals the teacher-forced one, so the accepted
    lengths are exact. Steps are those of the longest of `chain_lens`.
    """
    return HeadScore.total(list(_scores(draft, target, corpus, chain_lens)))


@torch.no_grad()
def _scores(
    draft: HeadDraft, target: FrozenTarget, corpus: Corpus, chain_lens: Sequence[int]
) -> Iterator[HeadScore]:
    by_length = corpus.lengths.argsort(stable=True)
    for rows in by_length.split(ROWS_AT_ONCE):
        batch = corpus.batch(rows)
        ends, starts = corpus.lengths[rows].tolist(), corpus.answer_starts[rows].tolist()
        rounds, emitted, hits = {}, {}, {}
        choices = kind_of(draft).choices(draft, target, batch, chain_lens)
        for chain_len, chosen in choices.items():
            hits[chain_len] = torch.stack(
                [
                    (draft_ids == shift(batch.tokens, step + 2)) & shift(batch.answer, step + 2)
                    for step, draft_ids in enumerate(chosen)
                ]
            )
            accepted = hits[chain_len].long().cumprod(0).sum(0).tolist()
            rounds[chain_len], emitted[chain_len] = _replay(accepted, starts, ends)
        right = hits[max(chain_lens)].sum((1, 2)).tolist()
        drafted = [int(shift(batch.answer, step + 2).sum()) for step in range(len(right))]
        yield HeadScore(right, drafted, rounds, emitted)


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
