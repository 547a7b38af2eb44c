"""What a person sees while an export runs."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


class Progress:
    """Names the stage under way, then its time and the peak host memory so far.

    Writes to stderr, and only where that is a terminal.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage of the export."""
        if not self.console.is_terminal:
            yield
            return
        start = time.perf_counter()
        with self.console.status(name):
            yield
        elapsed = time.perf_counter() - start
        self.console.print(f"{name:<32} {elapsed:7.1f} s   peak {peak_gib():5.2f} GiB")


def peak_gib() -> float:
    """Largest resident set of this process so far, in GiB (Linux reports KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
