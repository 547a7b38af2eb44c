"""What a process has one of, whatever libraries do to it: standard streams, and Ctrl-C."""

import _thread
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, Timer
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STDERR = 2
AGAIN = 0.05  # s, in which whatever swallowed an interrupt returns
_ONE_AT_A_TIME = RLock()
"""A process has one standard error, whatever its threads do."""


def open_standard_streams() -> None:
    """Let libraries find the streams that whoever started us has closed: ExecuTorch needs them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for ever


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


@contextmanager
def persistent_interrupts() -> Iterator[None]:
    """Repeat each KeyboardInterrupt that met a destructor or the callback of a weak reference.

    Python cannot raise it from there: it would print a traceback and go on. Tracing a model calls
    thousands of these.
    """
    before = sys.unraisablehook
    timers: list[Timer] = []

    def hook(unraisable: "UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            timers.append(Timer(AGAIN, _thread.interrupt_main))
            timers[-1].start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:  # where the block ended first there is nothing left to interrupt
            timer.cancel()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that it removes what it was writing.

    Of a process's main thread alone, as handlers of signals are.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
