"""What an engine's thread waits for."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Launches:
    """Of one engine: how many `rounds` it has played, and the seconds of rounds and of chunks of
    prompts, each from its launch until its tokens are read."""

    def __init__(self) -> None:
        self.rounds = 0
        self.rounds_seconds = self.prompts_seconds = 0.0

    @contextmanager
    def round(self) -> Iterator[None]:
        """One of all texts that run; one that fails does not count."""
        started = time.perf_counter()
        yield
        self.rounds += 1
        self.rounds_seconds += time.perf_counter() - started

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """One of a prompt; one that fails does not count."""
        started = time.perf_counter()
        yield
        self.prompts_seconds += time.perf_counter() - started
