"""Score how well a reading drafts a text, and whether it drafts clearly better than another.

Nats of hard tokens would drown those of easy ones, so two readings are compared by ratio, anchor by
anchor: the logarithm of the nats of one over those of the other, averaged over a chain's steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.common.self_test import CHAIN_LEN
from eagle_aot.export.self_test.text import Reading, TargetText

UNIFORM = 0.001
"""Share of the uniform distribution that is mixed into a head's, so that nats stay finite for a
token that it cannot draft, and one confident mistake does not dominate the mean."""
STANDARD_ERRORS = 3.0
"""What a mean must exceed to count. At FEWEST_BLOCKS chance gives that once in 310 for two equal
readings (Student's t, one-sided), and at most once in 28 for one of eleven."""
FLOOR = 0.05
"""A gain below 5 % is not reported, however certain."""
BLOCK = 8
"""Neighbouring anchors share drafts and topic: they are averaged before errors are estimated."""
FEWEST_BLOCKS = 24
SOFTENING = 0.001
"""Nats that are added, because differences below this do not matter."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a reading drafted one text, or several in turn.

    For A anchors and K steps: `hits` bool [A, K], whether a draft is the target's token; `nats`
    float32 [A, K], the cross entropy of that token; `labelled` bool [A, K], whether there is one.
    `labels` int64 [A] are the tokens that first drafts are compared with. `rounds` counts those of
    decoding the texts speculatively.
    """

    hits: Tensor
    nats: Tensor
    labelled: Tensor
    labels: Tensor
    rounds: "RoundCounts"

    @classmethod
    def total(cls, parts: Sequence["Score"]) -> "Score":
        """Return the score of several texts, at least one."""
        return cls(
            hits=torch.cat([part.hits for part in parts]),
            nats=torch.cat([part.nats for part in parts]),
            labelled=torch.cat([part.labelled for part in parts]),
            labels=torch.cat([part.labels for part in parts]),
            rounds=RoundCounts.total([part.rounds for part in parts]),
        )

    @property
    def mean_nats(self) -> float:
        """The mean over all drafts."""
        return float(self.nats[self.labelled].mean())

    @property
    def is_enough(self) -> bool:
        """Whether errors can be estimated well enough to judge by."""
        return len(self.labels) >= FEWEST_BLOCKS * BLOCK

    @property
    def commonest(self) -> tuple[int, float]:
        """The token that is most often right, and its share."""
        token = int(self.labels.mode().values)
        return token, float((self.labels == token).double().mean())

    @property
    def beats_commonest(self) -> bool:
        """Whether first drafts are right more often than the commonest token alone."""
        token, _ = self.commonest
        return Mean.of(self.hits[:, 0].double() - (self.labels == token).double()).is_clear


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """Counts as the runner's: `rounds`, tokens `emitted` by them; of draft i, the rounds that
    `reached[i]` and `accepted[i]` it."""

    rounds: int
    emitted: int
    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @classmethod
    def total(cls, parts: Sequence["RoundCounts"]) -> "RoundCounts":
        """Return the sums of texts, at least one, drafted with one chain length."""
        return cls(
            sum(part.rounds for part in parts),
            sum(part.emitted for part in parts),
            tuple(map(sum, zip(*(part.reached for part in parts), strict=True))),
            tuple(map(sum, zip(*(part.accepted for part in parts), strict=True))),
        )

    @property
    def tau(self) -> float:
        return self.emitted / self.rounds

    @property
    def acceptance_by_position(self) -> list[float]:
        """Accepted over reached, for the drafts that were reached."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [accepted / reached for accepted, reached in pairs if reached]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of a sample, with its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Tensor) -> "Mean":
        """Return the mean of `values` float [A], which are in the order of the text."""
        blocks = torch.stack([block.mean() for block in values.double().split(BLOCK)])
        return cls(float(values.double().mean()), float(blocks.std() / len(blocks) ** 0.5))

    @property
    def is_clear(self) -> bool:
        """Whether the mean is above zero by more than chance explains."""
        return self.value > STANDARD_ERRORS * self.error


def log_gain(chosen: Score, other: Score) -> Mean:
    """Return log(nats of `chosen` / nats of `other`): above zero where the other drafts better."""
    ratios = (chosen.nats + SOFTENING).log() - (other.nats + SOFTENING).log()
    labelled = chosen.labelled
    return Mean.of((ratios * labelled).sum(dim=1) / labelled.sum(dim=1))


def is_better(chosen: Score, other: Score) -> bool:
    """Return whether `other` drafts clearly better, by a worthwhile ratio and in plain nats too."""
    gain = log_gain(chosen, other)
    return gain.is_clear and gain.value > FLOOR and other.mean_nats < chosen.mean_nats


def score(reading: Reading, texts: Sequence[TargetText], vocab_size: int) -> Score:
    """Draft texts, at least one, from every anchor, with a vocabulary of `vocab_size`."""
    return Score.total([score_text(reading, text, vocab_size) for text in texts])


def score_text(reading: Reading, text: TargetText, vocab_size: int) -> Score:
    """Draft one text, which has at least one anchor."""
    tokens, target_ids, columns = text.tokens[0], reading.target_ids, []
    for step, logits in enumerate(reading.chain_logits(text, CHAIN_LEN)):
        predicted = torch.arange(text.slots - text.first_anchor, device=tokens.device)
        predicted = predicted + text.first_anchor + step + 2
        labels = tokens[predicted.clamp(max=len(tokens) - 1)]
        shares = logits.softmax(-1).nan_to_num()  # logits that overflow
        drafted = shares.masked_fill(target_ids != labels[:, None], 0.0).sum(-1)
        nats = -((1 - UNIFORM) * drafted + UNIFORM / vocab_size).log()
        hits = target_ids[logits.argmax(-1)] == labels
        columns.append((hits, nats, predicted < len(tokens), labels))
    hits, nats, labelled = (torch.stack([c[i] for c in columns], dim=1).cpu() for i in range(3))
    rounds = replay(hits, text.tokens.shape[1] - text.start)
    return Score(hits, nats, labelled, columns[0][3].cpu(), rounds)


def replay(hits: Tensor, new_tokens: int) -> RoundCounts:
    """Count the rounds that decode `new_tokens`, one of them by prefill, with chains of drafts that
    are right where `hits` bool [A, K] is true."""
    steps = hits.shape[1]
    leading = hits.long().cumprod(dim=1).sum(dim=1).tolist()
    decided, rounds, reached, accepted = 1, 0, [0] * steps, [0] * steps
    while decided < new_tokens:
        gain = min(leading[decided - 1] + 1, new_tokens - decided)
        for i in range(min(steps, gain)):
            reached[i] += 1
            accepted[i] += i < min(leading[decided - 1], gain)
        decided, rounds = decided + gain, rounds + 1
    return RoundCounts(rounds, new_tokens - 1, tuple(reached), tuple(accepted))
