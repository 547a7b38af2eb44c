"""The standard streams and the signals of a process."""

import _thread
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from threading import RLock, Timer
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STDERR = 2
RETRY_SECONDS = 0.05  # until an interrupt that a destructor swallowed is repeated
_ONE_AT_A_TIME = RLock()
"""Threads share the standard error of their process, so they redirect it one after another."""


def open_standard_streams() -> None:
    """Open standard streams that the parent process has closed: ExecuTorch needs them. Characters
    that a stream's encoding lacks are written as escapes, as are bytes of a path that are no text.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for ever
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Buffer what any thread writes to the process's standard error within the block.

    The text is written when the block succeeds, and dropped when it raises, because its error says
    more. Yields a function that returns the text so far. Takes about ten microseconds; a block
    waits for those of other threads.
    """
    with _ONE_AT_A_TIME, os.fdopen(os.memfd_create("stderr"), "r+b", buffering=0) as file:
        original = _redirect_stderr(file.fileno())
        try:
            yield lambda: _text(file)
        finally:
            os.dup2(original, STDERR)
            os.close(original)
        if text := _text(file):
            sys.stderr.write(text)


def _redirect_stderr(replacement: int) -> int:
    """Redirect standard error to a file; return a duplicate of the original descriptor."""
    try:
        original = os.dup(STDERR)
    except OSError:  # closed by the parent process
        original = os.open(os.devnull, os.O_WRONLY)
    os.dup2(replacement, STDERR)
    return original


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextmanager
def persistent_interrupts() -> Iterator[None]:
    """Repeat each KeyboardInterrupt that was raised in a destructor or a weak reference's callback.

    Python cannot raise it from there: it prints a traceback and continues. Tracing a model calls
    thousands of these.
    """
    previous_hook = sys.unraisablehook
    timers: list[Timer] = []

    def hook(unraisable: "UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            timers.append(Timer(RETRY_SECONDS, _thread.interrupt_main))
            timers[-1].start()
        else:
            previous_hook(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for timer in timers:  # the block has ended, so there is nothing to interrupt
            timer.cancel()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that it removes unfinished files.

    Only for the main thread of a process, as all signal handlers.
    """
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
