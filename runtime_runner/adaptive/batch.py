"""What the next round of several texts should draft."""

import statistics
from collections import deque
from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.acceptance.expected import ExpectedTokens
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.decode.shape import Shape

LENGTHS = (0, 1, 2, 3, 4, 5, 7)
"""Of chains that are tried."""
SAMPLES = 7  # of a round, the latest
FEWEST = 3  # before a round's time is believed: the first may have things to make
STALE = 256  # rounds, after which a round's times are forgotten
LOOK = 64  # plain rounds, after which one with drafts tells what they are worth now


class BatchChooser:
    """Chooses for all texts together, by what rounds took and drafts were worth lately.

    Nothing is measured in advance: a round that was not played is thought to take as long as the
    next smaller one that was, and so it is tried once it might pay.
    """

    def __init__(self) -> None:
        self._expected = ExpectedTokens()
        self._seconds: dict[tuple[int, Shape], deque[float]] = {}
        self._played_at: dict[tuple[int, Shape], int] = {}
        self._rounds = self._plain = 0

    def choose(self, batch_size: int, free: float, least: Shape, more: Sequence[Shape]) -> Shape:
        """What a round of so many places drafts: `least`, which some text has asked for, or one of
        `more`, that the part `free` of the texts takes."""
        if not self._known(batch_size, least):
            return least
        if self._plain >= LOOK and more:
            return more[0]
        shapes = [least, *more]
        expected = self._expected.of(shapes)

        def speed(shape: Shape) -> float:
            tokens = free * expected[shape].tokens + (1 - free)
            return tokens / self._price(batch_size, shape, shapes)

        return max(shapes, key=speed)

    def observe(
        self, batch_size: int, shape: Shape, played: Sequence[Played], seconds: float | None
    ) -> None:
        """A round, and what came of it for each text that takes what pays; nobody knows what it
        took where `seconds` is None."""
        self._rounds += 1
        self._plain = 0 if shape.nodes else self._plain + 1
        if seconds is not None:
            self._add_time((batch_size, shape), seconds)
        for of_text in played:
            if of_text.emitted:
                self._expected.add(shape, of_text)

    def _add_time(self, round_: tuple[int, Shape], seconds: float) -> None:
        if not self._fresh(round_):
            self._seconds.pop(round_, None)
        self._played_at[round_] = self._rounds
        self._seconds.setdefault(round_, deque(maxlen=SAMPLES)).append(seconds)

    def _price(self, batch_size: int, shape: Shape, shapes: Sequence[Shape]) -> float:
        """Median seconds, of the largest smaller one where this one is not known."""
        known = (
            s
            for s in shapes
            if s.nodes <= shape.nodes and s.depth <= shape.depth and self._known(batch_size, s)
        )
        nearest = max(known, key=lambda s: (s.nodes, s.depth))
        return statistics.median(self._seconds[batch_size, nearest])

    def _known(self, batch_size: int, shape: Shape) -> bool:
        round_ = batch_size, shape
        return self._fresh(round_) and len(self._seconds[round_]) >= FEWEST

    def _fresh(self, round_: tuple[int, Shape]) -> bool:
        return round_ in self._seconds and self._rounds - self._played_at[round_] <= STALE
