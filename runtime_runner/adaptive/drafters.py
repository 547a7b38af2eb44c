"""Which of several drafters the next texts have."""

import math
from collections.abc import Sequence

FEWEST = 32.0  # tokens of a text, before a drafter's speed is believed
MEMORY = 2048.0  # tokens, after which one counts 1 / e
SHARE = 0.02  # of the time, that trying slower drafters again may cost


class Speed:
    """Tokens a second that a text was given, the latest counting most."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Of a round."""
        keep = math.exp(-tokens / MEMORY)
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds

    @property
    def is_known(self) -> bool:
        """Whether there was enough to go by."""
        return self._tokens >= FEWEST

    @property
    def seconds_of_a_token(self) -> float:
        """What is measured."""
        return self._seconds / self._tokens


class DrafterChooser:
    """Chooses the drafter with the most tokens a second, as they were measured while texts ran, by
    the size of rounds: `places` tells those apart that take another time.

    Each is tried once, in their order. From then on, whoever was tried longest ago is tried again
    once `SHARE` of the time since the last trial covers what it is expected to lose.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._speeds: dict[tuple[int, str], Speed] = {}
        self._chosen_at = dict.fromkeys(self._names, 0)
        self._choices = 0
        self._tokens = self._spare = 0.0  # of a text, of all choices; seconds since the last trial

    def choose(self, places: int) -> str:
        """Who drafts for rounds of such a size from here on."""
        self._choices += 1
        chosen = self._choose(places)
        self._chosen_at[chosen] = self._choices
        return chosen

    def settled(self, places: int) -> str | None:
        """The fastest, once each is known."""
        if not all(self._speed(places, name).is_known for name in self._names):
            return None
        return min(self._names, key=lambda name: self._speed(places, name).seconds_of_a_token)

    def observe(self, places: int, name: str, tokens: float, seconds: float) -> None:
        """A round that this one has drafted gave each text so many tokens, on average."""
        self._speeds.setdefault((places, name), Speed()).add(tokens, seconds)
        self._tokens += tokens
        self._spare += SHARE * seconds

    def _choose(self, places: int) -> str:
        best = self.settled(places)
        if best is None:
            return next(n for n in self._names if not self._speed(places, n).is_known)
        cost = {name: self._speed(places, name).seconds_of_a_token for name in self._names}
        oldest = min(self._names, key=self._chosen_at.__getitem__)
        usual = self._tokens / self._choices
        if oldest == best or usual * (cost[oldest] - cost[best]) > self._spare:
            return best
        self._spare = 0.0
        return oldest

    def _speed(self, places: int, name: str) -> Speed:
        return self._speeds.get((places, name), Speed())
