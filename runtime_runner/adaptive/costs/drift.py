"""What rounds cost while they run, against what was measured before."""

import math
import statistics
from collections import deque

SAMPLES = 15  # of each kind, the latest
STALE = 64  # rounds of one kind, after which those of the other are to be seen again
SETTLED = 512  # with drafts, where nothing has changed since
FEWEST = 5  # plain samples, before they are relied on for so long
CHANGED = 0.05  # of the time of rounds with drafts


class Drift:
    """How much dearer rounds with drafts have become, in relation to plain ones.

    Medians of logarithms: a load that slows down all rounds alike changes nothing, and a single
    slow round changes little.
    """

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=SAMPLES)
        self._drafting: deque[float] = deque(maxlen=SAMPLES)
        self._seen = 0.0  # of rounds with drafts, when the last plain one was
        self._since = 0  # rounds with drafts since the last plain one, or plain ones if below 0

    @property
    def wants_plain(self) -> bool:
        """Whether a plain round is due, as there was none for so long."""
        return self._since >= STALE and (self._since >= SETTLED or not self._is_settled)

    @property
    def factor(self) -> float:
        """1 where nothing is known, and never less: plain rounds are few among others, and those
        of a slower time must not make drafting look cheap."""
        if not self._plain or not self._drafting:
            return 1.0
        return math.exp(max(median(self._drafting) - median(self._plain), 0.0))

    def add(self, drafting: bool, rounds: int, seconds: float, measured: float) -> None:
        """A run of rounds that took `seconds` each, where `measured` was expected."""
        (self._drafting if drafting else self._plain).append(math.log(seconds / measured))
        if drafting:
            self._since = max(self._since, 0) + rounds
            return
        self._seen = median(self._drafting)
        self._since = min(self._since, 0) - rounds
        if self._since <= -STALE:
            self._since = 0
            if self._drafting:
                self._drafting.popleft()

    @property
    def _is_settled(self) -> bool:
        changed = abs(median(self._drafting) - self._seen)
        return len(self._plain) >= FEWEST and changed < CHANGED


def median(samples: deque[float]) -> float:
    """0 where there are none."""
    return statistics.median(samples) if samples else 0.0
