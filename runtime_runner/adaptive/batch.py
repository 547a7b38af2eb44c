"""How many drafts the next round of several texts should have."""

import statistics
from collections import deque
from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.estimate import AcceptanceEstimate

LENGTHS = (0, 1, 2, 3, 4, 5, 7)
"""Those that are tried."""
SAMPLES = 7  # of a shape, the latest
FEWEST = 3  # before a shape's time is believed: the first may be that of recording it
STALE = 256  # rounds, after which a shape's times are forgotten
LOOK = 64  # plain rounds, after which one with drafts tells what they are worth now


class BatchChainLength:
    """Chooses for all texts together, by what rounds took and drafts were worth lately.

    Nothing is measured in advance: a shape that was not played is thought to take as long as the
    next smaller one that was, and so it is tried once it might pay.
    """

    def __init__(self) -> None:
        self._estimate = AcceptanceEstimate(LENGTHS[-1])
        self._seconds: dict[tuple[int, int], deque[float]] = {}
        self._played_at: dict[tuple[int, int], int] = {}
        self._rounds = self._plain = 0

    def choose(self, places: int, free: float, least: int, longest: int) -> int:
        """Drafts a round of so many places, `least` of which some text has asked for; the part
        `free` of the texts takes what pays, of `longest` at most."""
        lengths = [least, *(k for k in LENGTHS if least < k <= longest)]
        if not self._known(places, least):
            return least
        if self._plain >= LOOK and lengths[-1]:
            return next(k for k in lengths if k)
        tokens = self._estimate.tokens()

        def speed(chain_len: int) -> float:
            expected = free * tokens[min(chain_len, LENGTHS[-1])] + (1 - free)
            return expected / self._price(places, chain_len)

        return max(lengths, key=speed)

    def observe(
        self, places: int, chain_len: int, played: Sequence[tuple[int, int]], seconds: float
    ) -> None:
        """A round: of each text, how many drafts were accepted among how many tokens."""
        self._rounds += 1
        self._plain = 0 if chain_len else self._plain + 1
        shape = places, chain_len
        if not self._fresh(shape):
            self._seconds.pop(shape, None)
        self._played_at[shape] = self._rounds
        self._seconds.setdefault(shape, deque(maxlen=SAMPLES)).append(seconds)
        for accepted, emitted in played:
            if chain_len and emitted:
                reached = min(chain_len, emitted, LENGTHS[-1])
                self._estimate.add(reached, min(accepted, reached))

    def _price(self, places: int, chain_len: int) -> float:
        """Median seconds, of the next smaller shape where this one is not known."""
        known = next(k for k in range(chain_len, -1, -1) if self._known(places, k))
        return statistics.median(self._seconds[places, known])

    def _known(self, places: int, chain_len: int) -> bool:
        shape = places, chain_len
        return self._fresh(shape) and len(self._seconds[shape]) >= FEWEST

    def _fresh(self, shape: tuple[int, int]) -> bool:
        return shape in self._seconds and self._rounds - self._played_at[shape] <= STALE
