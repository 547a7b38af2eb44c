"""What rounds cost while they run, against what was measured before."""

import math
import statistics
from collections import defaultdict, deque

from eagle_aot.runtime_runner.decode.shape import Shape

SAMPLES = 15  # of each kind, the latest
STALE = 64  # rounds of one kind, after which those of the other are to be seen again
SETTLED = 512  # with drafts, where nothing has changed since
FEWEST = 5  # plain samples, before they are relied on for so long
CHANGED = 0.05  # of the time of rounds with drafts
MEMORY = 64  # samples of a shape, after which one counts 1 / e
WEIGHT = 8  # samples, that what was measured counts as
FARTHEST = 0.1  # that one sample may be from what is usual, as a logarithm
SURE = 0.02  # as a logarithm, within which what was measured is believed


class Offset:
    """How much more a shape takes than others with drafts do, beside what was measured: the
    logarithm of a ratio."""

    def __init__(self) -> None:
        self._log = 0.0
        self._samples = 0

    def add(self, sample: float) -> None:
        """A ratio's logarithm."""
        self._samples = min(self._samples + 1, MEMORY)
        difference = min(max(sample - self._log, -FARTHEST), FARTHEST)
        self._log += difference / (self._samples + WEIGHT)

    @property
    def log(self) -> float:
        """0 where it is about that: to correct what is right would be to follow noise."""
        return math.copysign(max(abs(self._log) - SURE, 0.0), self._log)


class Drift:
    """How much dearer rounds with drafts have become in relation to plain ones, and each shape in
    relation to the others: few samples were measured where rounds are long or times are noisy.

    Medians of logarithms: a load that slows down all rounds alike changes nothing, and a single
    slow round changes little.
    """

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=SAMPLES)
        self._drafting: deque[float] = deque(maxlen=SAMPLES)
        self._again: deque[tuple[Shape, float]] = deque(maxlen=SAMPLES)
        """Those behind others of the same shape: the first of a shape takes longer."""
        self._offsets: defaultdict[Shape, Offset] = defaultdict(Offset)
        self._last: Shape | None = None
        self._dearer = 0.0
        """All rounds with drafts, never less: plain ones are few among others, and those of a
        slower time must not make drafting look cheap."""
        self._seen = 0.0  # of rounds with drafts, when the last plain one was
        self._since = 0  # rounds with drafts since the last plain one, or plain ones if below 0

    @property
    def wants_plain(self) -> bool:
        """Whether a plain round is due, as there was none for so long."""
        return self._since >= STALE and (self._since >= SETTLED or not self._is_settled)

    def of(self, shape: Shape) -> float:
        """What its price in plain rounds is to be multiplied with, 1 where nothing is known."""
        return math.exp(self._dearer + self._offsets[shape].log) if shape.nodes else 1.0

    def add(self, shape: Shape, rounds: int, seconds: float, measured: float) -> None:
        """A run of rounds that took `seconds` each, where `measured` was expected."""
        change = math.log(seconds / measured)
        if shape.nodes:
            self._add_drafting(shape, change)
            self._since = max(self._since, 0) + rounds
        else:
            self._add_plain(change)
            self._since = min(self._since, 0) - rounds
            self._forget_drafting()
        self._last = shape
        known = self._plain and self._drafting
        self._dearer = max(self._usual - statistics.median(self._plain), 0.0) if known else 0.0

    def _add_drafting(self, shape: Shape, change: float) -> None:
        """What a shape has of its own shows beside other ones that were played lately."""
        if shape == self._last:
            others = [usual for other, usual in self._again if other != shape]
            if others:
                self._offsets[shape].add(change - statistics.median(others))
            self._again.append((shape, change - self._offsets[shape].log))
        self._drafting.append(change - self._offsets[shape].log)

    def _add_plain(self, change: float) -> None:
        self._plain.append(change)
        self._seen = self._usual

    def _forget_drafting(self) -> None:
        """A sample, where there was no new one for so long."""
        if self._since <= -STALE:
            self._since = 0
            if self._drafting:
                self._drafting.popleft()

    @property
    def _is_settled(self) -> bool:
        return len(self._plain) >= FEWEST and abs(self._usual - self._seen) < CHANGED

    @property
    def _usual(self) -> float:
        """Of rounds with drafts, as far as they share it, 0 where there are none."""
        return statistics.median(self._drafting) if self._drafting else 0.0
