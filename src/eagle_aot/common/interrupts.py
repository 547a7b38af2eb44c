"""Ctrl-C that a destructor swallowed."""

import _thread
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN = 0.05  # s, in which whatever swallowed it returns


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
