"""What native code prints before it fails."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import BinaryIO

STDERR = 2
_ONE_AT_A_TIME = RLock()
"""A process has one standard error, whatever its threads do."""


@contextmanager
def held_stderr() -> Iterator[Callable[[], str]]:
    """Hold back what any thread writes to the process's standard error within the block.

    It is passed on where the block ends well, and dropped where it raises: what it raises says
    more. Calling what it gives returns the text so far. Costs about ten microseconds; a block waits
    for those of other threads.
    """
    with _ONE_AT_A_TIME, os.fdopen(os.memfd_create("stderr"), "r+b", buffering=0) as file:
        before = _swapped(file.fileno())
        try:
            yield lambda: _text(file)
        finally:
            os.dup2(before, STDERR)
            os.close(before)
        if text := _text(file):
            sys.stderr.write(text)


def _swapped(replacement: int) -> int:
    """Put a file in the place of standard error; a duplicate of what was there."""
    try:
        before = os.dup(STDERR)
    except OSError:  # closed by whoever started us: nobody would have seen it
        before = os.open(os.devnull, os.O_WRONLY)
    os.dup2(replacement, STDERR)
    return before


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
