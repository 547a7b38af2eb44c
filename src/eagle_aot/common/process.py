"""The standard streams and the signals of a process."""

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
AGAIN = 0.05  # s after which an interrupt that was swallowed is repeated
_ONE_AT_A_TIME = RLock()
"""All threads of a process share its standard error."""


def open_standard_streams() -> None:
    """Open standard streams that the parent process has closed: ExecuTorch needs them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for ever


@contextmanager
def held_stderr() -> Iterator[Callable[[], str]]:
    """Buffer what any thread writes to the process's standard error within the block.

    The text is written when the block succeeds, and dropped when it raises, because its error says
    more. Yields a function that returns the text so far. Takes about ten microseconds; a block
    waits for those of other threads.
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
    """Replace standard error by a file; return a duplicate of the original descriptor."""
    try:
        before = os.dup(STDERR)
    except OSError:  # closed by the parent process
        before = os.open(os.devnull, os.O_WRONLY)
    os.dup2(replacement, STDERR)
    return before


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextmanager
def persistent_interrupts() -> Iterator[None]:
    """Repeat each KeyboardInterrupt that was raised in a destructor or a weak reference's callback.

    Python cannot raise it from there: it prints a traceback and continues. Tracing a model calls
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
        for timer in timers:  # the block has ended, so there is nothing to interrupt
            timer.cancel()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that it removes unfinished files.

    Only for the main thread of a process, as all signal handlers.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
