"""What rounds cost on this device."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCosts:
    """Medians in seconds, at two positions of the text and between them on a straight line.

    `rounds[K]` is a round of K drafts, at `positions[0]` and at `positions[1]`; a chain length of 0
    is plain decoding. `catch_up` is a forward of the head over 1 row and over `rows` rows.
    """

    positions: tuple[int, int]
    rounds: Sequence[tuple[float, float]]
    rows: int
    catch_up: tuple[float, float]

    @property
    def longest(self) -> int:
        """The longest chain."""
        return len(self.rounds) - 1

    def price(self, chain_len: int, position: int) -> float:
        """Of a round, in plain rounds."""
        return self.seconds(chain_len, position) / self.seconds(0, position)

    def price_of_catching_up(self, rows: int, position: int) -> float:
        """Of showing the head `rows` plain tokens at once, in plain rounds."""
        one, many = self.catch_up
        slope = (many - one) / max(self.rows - 1, 1)
        return (one + slope * (rows - 1)) / self.seconds(0, position)

    def seconds(self, chain_len: int, position: int) -> float:
        """Of a round. Beyond where it was measured it costs what it does there."""
        (first, last), (low, high) = self.positions, self.rounds[chain_len]
        share = (position - first) / max(last - first, 1)
        return low + (high - low) * min(max(share, 0.0), 1.0)
