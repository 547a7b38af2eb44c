"""What rounds cost on this device."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.shape import Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCosts:
    """Medians in seconds, at two positions of the text and between them on a straight line.

    `rounds` of each shape, plain decoding and some chain among them, at `positions[0]` and at
    `positions[1]`. `catch_up` is a forward of the head over 1 row and over `rows` rows.
    """

    positions: tuple[int, int]
    rounds: Mapping[Shape, tuple[float, float]]
    rows: int
    catch_up: tuple[float, float]

    @property
    def longest(self) -> Shape:
        """The longest chain."""
        return max((s for s in self.rounds if s.is_chain), key=lambda shape: shape.depth)

    def price(self, shape: Shape, position: int) -> float:
        """Of a round, in plain rounds."""
        return self.seconds(shape, position) / self.seconds(PLAIN, position)

    def prices(self, position: int) -> dict[Shape, float]:
        """Of all rounds."""
        share, plain = self._share(position), self.seconds(PLAIN, position)
        return {shape: between(*ends, share) / plain for shape, ends in self.rounds.items()}

    def price_of_catching_up(self, rows: int, position: int) -> float:
        """Of showing the head `rows` plain tokens at once, in plain rounds."""
        one, many = self.catch_up
        slope = (many - one) / max(self.rows - 1, 1)
        return (one + slope * (rows - 1)) / self.seconds(PLAIN, position)

    def seconds(self, shape: Shape, position: int) -> float:
        """Of a round. Beyond where it was measured it costs what it does there."""
        return between(*self.rounds[shape], self._share(position))

    def _share(self, position: int) -> float:
        """Of the way between the two positions."""
        first, last = self.positions
        return min(max((position - first) / max(last - first, 1), 0.0), 1.0)


def between(low: float, high: float, share: float) -> float:
    """That share of the way from one to the other."""
    return low + (high - low) * share
