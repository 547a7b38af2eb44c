"""Shares the engine's time between prompts and running requests, and measures it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eagle_aot.runtime_runner.engine.running_request import RunningRequest


class PromptShare:
    """Decides whether a step runs a prompt chunk or a round.

    An account in seconds: rounds earn time for prompts, chunks spend it. The first chunk is on
    credit, so that a prompt of one chunk starts at once.
    """

    def __init__(self, share: float) -> None:
        """Give prompts the `share` of the time, between 0 and 1.

        At 0.5, a running request takes twice its time while prompts run.
        """
        self._earned_by_second = share / (1 - share)
        self._account = 0.0

    @property
    def due(self) -> bool:
        """Whether the next step should run a chunk."""
        return self._account >= 0

    def add_chunk(self, seconds: float) -> None:
        """Spend the time of a chunk that running requests waited for."""
        self._account -= seconds

    def add_round(self, seconds: float) -> None:
        """Earn from a round that prompts waited for."""
        self._account += seconds * self._earned_by_second

    def reset(self) -> None:
        """Clear the account: prompts and running requests no longer compete."""
        self._account = 0.0


class PromptTurns:
    """Chooses which prompt runs its next chunk.

    It is the shortest remaining prompt, and every second time the oldest one: a short prompt need
    not wait for a long one, and a long one still advances.
    """

    def __init__(self) -> None:
        self._oldest_next = False

    def next(self, requests: Sequence[RunningRequest]) -> RunningRequest:
        """Choose from at least one request, in the order in which they came."""
        self._oldest_next = not self._oldest_next and len(requests) > 1
        if not self._oldest_next:
            return requests[0]
        return min(requests, key=lambda request: request.prompt_left)


class Launches:
    """Time of an engine's forwards in seconds, each from its launch until its tokens are read.

    `rounds` counts the rounds. A forward that fails does not count.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.rounds_seconds = self.prompts_seconds = 0.0

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time a round of all running requests."""
        started = time.perf_counter()
        yield
        self.rounds += 1
        self.rounds_seconds += time.perf_counter() - started

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """Time a chunk of a prompt."""
        started = time.perf_counter()
        yield
        self.prompts_seconds += time.perf_counter() - started
