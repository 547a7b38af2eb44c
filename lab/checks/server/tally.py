"""What came of many clients' requests."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles


@dataclass(slots=True)
class Tally:
    """Over all clients: how requests ended, seconds until the first token and until the end, and
    what was wrong with those that failed or differ."""

    ends: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    problems: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, how: str, problem: str = "") -> None:
        """How a request ended, from any thread."""
        with self._lock:
            self.ends[how] += 1
            if problem:
                self.problems.append(problem)

    def time(self, tokens: int, first: float | None, whole: float) -> None:
        """What an answer cost, from any thread; `first` is None where it came at once."""
        with self._lock:
            self.tokens += tokens
            self.whole.append(whole)
            if first is not None:
                self.first.append(first)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The median, what 5 % and 1 % exceed, and the longest."""
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=100)
    return {"median": cuts[49], "95 %": cuts[94], "99 %": cuts[98], "most": max(values)}
