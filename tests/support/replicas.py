"""The processes of a server's replicas that Ray runs on this machine."""

from collections.abc import Iterator
from pathlib import Path

NAME = b"ray::ServeReplica:eagle-aot:Replica"


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
