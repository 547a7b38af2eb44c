"""A server's replicas that Ray runs on this machine."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NAME = b"ray::ServeReplica:eagle-aot:Replica"
REPLACED_WITHIN = 120.0  # seconds
POLL = 0.2


def replicas() -> list[int]:
    """Return the ids of their processes, the oldest first."""
    return sorted(_replicas())


def _replicas() -> Iterator[int]:
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and NAME in (process / "cmdline").read_bytes():
                yield int(process.name)
        except OSError:  # it has ended
            continue


def resident_bytes(process: int) -> int:
    """Return the bytes of a process's memory, 0 where it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Killer:
    """Kills the oldest replica every so many seconds; `killed` counts them."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._count = seconds, len(replicas())
        self.killed = 0

    def kill_until(self, end: float) -> None:
        """Kill replicas until `time.monotonic` reaches `end`."""
        while (remaining := end - time.monotonic()) > 0:
            time.sleep(min(self._seconds, remaining))
            oldest = next(iter(replicas()), None)
            if oldest is not None and time.monotonic() < end:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(oldest, signal.SIGKILL)
                    self.killed += 1

    def all_replaced(self) -> bool:
        """Wait until there are as many as before; return whether that came in time."""
        deadline = time.monotonic() + REPLACED_WITHIN
        while len(replicas()) < self._count and time.monotonic() < deadline:
            time.sleep(POLL)
        return len(replicas()) >= self._count
