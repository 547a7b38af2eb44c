"""From the engine's thread to event loops, once for each step."""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

Call = tuple[Callable[..., None], tuple[Any, ...]]


class Outbox:
    """Calls that one thread has for loops of others. Each alone would wake its loop, which then
    takes the interpreter from a thread that has texts left to tell of and a round to launch."""

    def __init__(self) -> None:
        self._calls: dict[AbstractEventLoop, list[Call]] = {}

    def add(self, loop: AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
        """One more, for later."""
        self._calls.setdefault(loop, []).append((call, arguments))

    def send(self) -> None:
        """All of them, in their order. A loop that is closed hears nothing, and the log does."""
        sent, self._calls = self._calls, {}
        for loop, calls in sent.items():
            try:
                loop.call_soon_threadsafe(make, calls)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                log.warning("an event loop is closed: calls for it that are lost: %d", len(calls))


def make(calls: list[Call]) -> None:
    """In the loop's thread."""
    for call, arguments in calls:
        call(*arguments)
