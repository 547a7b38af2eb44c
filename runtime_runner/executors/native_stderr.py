"""What native code says before it returns an error code."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2


@contextmanager
def kept_stderr() -> Iterator[list[str]]:
    """Keep what is written to the process's standard error within the block, by any thread: the
    list holds it, as one text, behind the block. It costs a few microseconds."""
    said: list[str] = []
    file = os.memfd_create("stderr")
    try:
        before = os.dup(STDERR)
    except OSError:  # closed by whoever started us: nobody would have seen it
        before = os.open(os.devnull, os.O_WRONLY)
    os.dup2(file, STDERR)
    try:
        yield said
    finally:
        os.dup2(before, STDERR)
        os.close(before)
        with open(file, "rb") as kept:
            kept.seek(0)
            said.append(kept.read().decode(errors="replace"))
