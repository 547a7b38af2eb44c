"""How likely the next drafts are to be accepted, from those of the text so far."""

from collections.abc import Sequence
from operator import mul

MEMORY = 48.0  # rounds, after which an observation counts 1 / e
TEXTS = 16.0  # texts, after which one counts 1 / e in what is usual
HEAD_START = 4.0  # rounds that what is usual counts as in a new text, at each position alike
OPTIMISM = 0.9  # of a draft that nothing is known about
WEIGHT_OF_OPTIMISM = 1.0  # rounds


class AcceptanceEstimate:
    """The chance of draft i, if all before it are accepted: accepted over reached, forgetting.

    A position that was not reached lately is thought to do as the one before it, so that chains
    grow again of themselves. What earlier texts were like is where a new text begins.
    """

    def __init__(self, longest: int) -> None:
        self._reached = [0.0] * longest
        self._accepted = [0.0] * longest
        self._usually_reached = [0.0] * longest
        self._usually_accepted = [0.0] * longest
        self._text: tuple[list[int], list[int]] = [0] * longest, [0] * longest

    def begin(self) -> None:
        """A new text: keep what is usual, weighing texts alike, however long they were."""
        reached, accepted = self._text
        if reached[0]:
            keep = 1 - 1 / TEXTS
            for i, (r, a) in enumerate(zip(reached, accepted, strict=True)):
                self._usually_reached[i] = keep * self._usually_reached[i] + r / reached[0]
                self._usually_accepted[i] = keep * self._usually_accepted[i] + a / reached[0]
        self._text = [0] * len(reached), [0] * len(reached)
        # So that one rare draft does not say more of its position than all texts before.
        scales = [HEAD_START / max(r, 1.0) for r in self._usually_reached]
        self._reached = list(map(mul, scales, self._usually_reached))
        self._accepted = list(map(mul, scales, self._usually_accepted))

    def add(self, reached: int, accepted: int) -> None:
        """A round that looked at its first `reached` drafts and accepted the first `accepted`."""
        keep = 1 - 1 / MEMORY
        for i in range(len(self._reached)):
            seen, right = i < reached, i < accepted
            self._reached[i] = keep * self._reached[i] + seen
            self._accepted[i] = keep * self._accepted[i] + right
            self._text[0][i] += seen
            self._text[1][i] += right

    def rates(self) -> list[float]:
        """The chance of each draft, if all before it are accepted."""
        rates: list[float] = []
        for r, a in zip(self._reached, self._accepted, strict=True):
            before = rates[-1] if rates else OPTIMISM
            rates.append((a + WEIGHT_OF_OPTIMISM * before) / (r + WEIGHT_OF_OPTIMISM))
        return rates


def runs(expected: Sequence[bool], longest: int) -> list[tuple[int, int]]:
    """(reached, accepted) of the rounds that would start at each of some plain tokens, from
    whether the head expected each of them."""
    found = []
    for start in range(len(expected)):
        window = expected[start : start + longest]
        accepted = window.index(False) if False in window else len(window)
        found.append((min(accepted + 1, len(window)), accepted))
    return found
