"""How far a drafter's probabilities are to be believed."""

from bisect import bisect
from collections.abc import Sequence

EDGES = 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95
"""Between bins of probability: most drafts but the first of siblings are unlikely ones."""
MEMORY = 1000.0  # drafts of a bin, after which one counts 1 / e
WEIGHT = 16.0  # drafts that the drafter's own word counts as in a bin


class Reliability:
    """Counts, in bins of the probability that a drafter gave, the tokens that came: a histogram
    calibration (Zadrozny and Elkan, 2001) that starts from the drafter's own word."""

    def __init__(self) -> None:
        self._expected = [0.0] * (len(EDGES) + 1)
        self._came = [0.0] * (len(EDGES) + 1)

    def add(self, chance: float, came: bool) -> None:
        """A token that was given a chance, and whether the target chose it."""
        at, keep = bisect(EDGES, chance), 1 - 1 / MEMORY
        self._expected[at] = keep * self._expected[at] + chance
        self._came[at] = keep * self._came[at] + came

    def calibrated(self, chances: Sequence[float]) -> list[float]:
        """As often as tokens with such a chance came: of several for one place, 1 in all at
        most."""
        found = [self._calibrated(chance) for chance in chances]
        return [chance / max(1.0, sum(found)) for chance in found]

    def _calibrated(self, chance: float) -> float:
        if not chance:  # as small as numbers are
            return 0.0
        at, own = bisect(EDGES, chance), WEIGHT * chance
        return chance * (self._came[at] + own) / (self._expected[at] + own)
