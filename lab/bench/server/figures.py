"""What was measured of a server under so many clients, beside its engine alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from eagle_aot.lab.checks.server.tally import percentiles


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTime:
    """Of an engine over `seconds` by the clock: `rounds` of all texts together, how long it waited
    for them and for prompts, and its thread's time beside that. None is what is not told;
    `first_token` has percentiles of a text alone, from its turn on, in seconds."""

    seconds: float
    tokens: int
    rounds: int | None = None
    rounds_seconds: float | None = None
    prompts_seconds: float | None = None
    host_seconds: float | None = None
    first_token: dict[str, float] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all texts."""
        return self.tokens / self.seconds

    @property
    def round_ms(self) -> float | None:
        """From a round's launch until its tokens are read."""
        return per(self.rounds_seconds, self.rounds, 1e3)

    @property
    def host_ms(self) -> float | None:
        """Between a round, or a chunk of a prompt, and the next: per round."""
        return per(self.host_seconds, self.rounds, 1e3)

    @property
    def host_share(self) -> float | None:
        """Of a round and what lies between it and the next."""
        if self.host_ms is None or self.round_ms is None:
            return None
        return self.host_ms / (self.host_ms + self.round_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Of so many `clients`, each with one text after the other.

    Seconds: until the `first_token`; `per_token` behind it, of each answer's mean; `between` events
    that bring text, each a round's tokens. `text_rounds` counts a round once for each of its texts;
    `cpu_seconds` is what the thread that speaks with clients took. `alone` is the engine with as
    many texts side by side, or as many as it has caches for; `clients_cpu` the part of a core that
    each process of clients took, and `different` counts texts that are not those of before.
    """

    clients: int
    served: EngineTime
    alone: EngineTime | None
    first_token: dict[str, float]
    per_token: dict[str, float]
    between: dict[str, float]
    text_rounds: int
    cpu_seconds: float | None
    clients_cpu: float
    different: int

    @property
    def texts_of_round(self) -> float | None:
        """On average."""
        return per(self.text_rounds, self.served.rounds)

    @property
    def tau(self) -> float | None:
        """Tokens of a text and round, those that prompts give counted in."""
        return per(self.served.tokens, self.text_rounds)

    @property
    def cpu_of_round(self) -> float | None:
        """Milliseconds of the thread that speaks with clients."""
        return per(self.cpu_seconds, self.served.rounds, 1e3)

    @property
    def cpu_of_token(self) -> float | None:
        """Seconds of it."""
        return per(self.cpu_seconds, self.served.tokens)

    def to_json(self) -> dict[str, Any]:
        """With what follows from it."""
        names = "tokens_per_second", "round_ms", "host_ms", "host_share"
        follows = {
            f"{whose}_{name}": getattr(one, name)
            for whose, one in (("served", self.served), ("alone", self.alone))
            if one is not None
            for name in names
        }
        return {**asdict(self), **follows, "cpu_of_token": self.cpu_of_token}


def per(value: float | None, count: int | None, unit: float = 1.0) -> float | None:
    """Of each; None where either is not known."""
    return None if value is None or not count else unit * value / count


def times(answers: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Percentiles of what clients waited, as `Line` has them."""
    heard = [answer for answer in answers if answer["times"]]
    longer = [answer for answer in heard if answer["tokens"] > 1]
    return {
        "first_token": spread(answer["times"][0] - answer["started"] for answer in heard),
        "per_token": spread(
            (answer["times"][-1] - answer["times"][0]) / (answer["tokens"] - 1) for answer in longer
        ),
        "between": spread(
            later - earlier for answer in heard for earlier, later in pairwise(answer["times"])
        ),
    }


def spread(values: Iterable[float]) -> dict[str, float]:
    """As `percentiles`; one value is all of them."""
    found = list(values)
    return percentiles(found * 2 if len(found) == 1 else found)


def clock(answers: Sequence[dict[str, Any]]) -> float:
    """Seconds from the first request to the end of the last answer."""
    first = min((answer["started"] for answer in answers), default=math.nan)
    return max((answer["ended"] for answer in answers), default=math.nan) - first
