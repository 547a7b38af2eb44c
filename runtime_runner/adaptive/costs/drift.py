"""What rounds cost while they run, against what was measured before."""

import math
import statistics
from collections import deque

SAMPLES = 15  # of each kind, the latest
STALE = 64  # plain rounds, after which one sample of the other kind is forgotten


class Drift:
    """How much dearer rounds with drafts have become, in relation to plain ones.

    Medians of logarithms: a load that slows down all rounds alike changes nothing, and a single
    slow round changes little.
    """

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=SAMPLES)
        self._drafting: deque[float] = deque(maxlen=SAMPLES)
        self._since = 0  # rounds with drafts since the last plain one, or plain ones if below 0

    @property
    def wants_plain(self) -> bool:
        """Whether there was no plain round for so long that one is due."""
        return self._since >= STALE

    @property
    def factor(self) -> float:
        """1 where nothing is known, and never less: plain rounds are few among others, and those
        of a slower time must not make drafting look cheap."""
        if not self._plain or not self._drafting:
            return 1.0
        dearer = statistics.median(self._drafting) - statistics.median(self._plain)
        return math.exp(max(dearer, 0.0))

    def add(self, drafting: bool, rounds: int, seconds: float, measured: float) -> None:
        """A run of rounds that took `seconds` each, where `measured` was expected."""
        (self._drafting if drafting else self._plain).append(math.log(seconds / measured))
        self._since = max(self._since, 0) + rounds if drafting else min(self._since, 0) - rounds
        if self._since <= -STALE:
            self._since = 0
            if self._drafting:
                self._drafting.popleft()
