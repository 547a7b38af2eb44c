"""Whether one reading drafts clearly better than another: paired, anchor by anchor.

Nats of hard tokens would drown those of easy ones, so anchors are compared by ratio: the logarithm
of the nats of one reading over those of the other, averaged over the steps of a chain.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.export.drafters.self_test.score import Score

STANDARD_ERRORS = 3.0
"""What a mean must exceed to count. At FEWEST_BLOCKS chance gives that once in 310 for two equal
readings (Student's t, one-sided), and at most once in 28 for one of eleven."""
FLOOR = 0.05
"""A gain below 5 % is not worth a flag, however sure."""
BLOCK = 8
"""Neighbouring anchors share drafts and topic: they are averaged before errors are estimated."""
FEWEST_BLOCKS = 24
SOFTENING = 0.001
"""Nats below this are all good."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Of a sample, with its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Tensor) -> "Mean":
        """`values` float [A], in the order of the text."""
        blocks = torch.stack([block.mean() for block in values.double().split(BLOCK)])
        return cls(float(values.double().mean()), float(blocks.std() / len(blocks) ** 0.5))

    @property
    def is_clear(self) -> bool:
        """Above nothing by more than chance explains."""
        return self.value > STANDARD_ERRORS * self.error


def log_gain(chosen: Score, other: Score) -> Mean:
    """log(nats of `chosen` / nats of `other`): above zero where the other one drafts better."""
    ratios = (chosen.nats + SOFTENING).log() - (other.nats + SOFTENING).log()
    labelled = chosen.labelled
    return Mean.of((ratios * labelled).sum(dim=1) / labelled.sum(dim=1))


def is_better(chosen: Score, other: Score) -> bool:
    """Clearly, by a worthwhile ratio, and in plain nats as well."""
    gain = log_gain(chosen, other)
    return gain.is_clear and gain.value > FLOOR and other.mean_nats < chosen.mean_nats


def is_enough(score: Score) -> bool:
    """Whether errors can be estimated well enough to judge by."""
    return len(score.labels) >= FEWEST_BLOCKS * BLOCK


def commonest(score: Score) -> tuple[int, float]:
    """The token that is most often right, and its share."""
    token = int(score.labels.mode().values)
    return token, float((score.labels == token).double().mean())


def beats_commonest(score: Score) -> bool:
    """Whether first drafts are right more often than the one token that is right most often."""
    token, _ = commonest(score)
    return Mean.of(score.hits[:, 0].double() - (score.labels == token).double()).is_clear


def reads_features(score: Score, control: Score) -> bool:
    """Whether the target's hidden states help: drafts are better than with those of elsewhere."""
    return log_gain(control, score).is_clear
