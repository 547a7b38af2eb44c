"""What drafts beside the likeliest one are worth."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.acceptance.reliability import Reliability
from eagle_aot.runtime_runner.decode.next_token_probs import WIDTH, NextTokenProbs

MEMORY = 48.0  # rounds, after which one counts 1 / e
FIRST, HALVING = 0.6, 0.15  # of the likeliest and the second, before any was seen


class Siblings:
    """Calibrated chances of the likeliest tokens behind a text, by rank, from what a drafter
    expected there and what came."""

    def __init__(self) -> None:
        self._reliability = Reliability()
        self._usual = [FIRST, *(HALVING / 2**rank for rank in range(WIDTH - 1))]

    def add(self, before: NextTokenProbs, token: int) -> None:
        """A token that came where something was expected."""
        chances = self.chances(before)
        for rank, chance in enumerate(chances):
            self._usual[rank] += (chance - self._usual[rank]) / MEMORY
        for expected, chance in zip(*before, strict=True):
            self._reliability.add(chance, expected == token)

    def chances(self, next_token_probs: NextTokenProbs) -> Sequence[float]:
        """Of each, calibrated."""
        return self._reliability.calibrated(next_token_probs.chances)

    def rescue(self, width: int) -> float:
        """Where the likeliest is wrong, the chance that one of the next is right, `width` with
        it."""
        first, *others = self._usual[:width]
        return min(1.0, sum(others) / max(1 - first, 1e-6))
