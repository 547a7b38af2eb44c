"""The engine in a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.runtime_runner.engine import Engine, Failed
from eagle_aot.runtime_runner.engine.request import RequestId, reason
from eagle_aot.runtime_runner.engine.turns import Launches
from eagle_aot.runtime_runner.frontend.generation import Generation, PendingRequests
from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.serve.outbox import Outbox

log = logging.getLogger(__name__)

Heard = Result | Failed
Submitted = tuple[Generation, Callable[[Heard], None]]
"""A generation and who hears what came of it: in the worker's thread, as its callbacks are, so none
of them may wait."""


class Full(EagleError):
    """As many requests wait as may: this one may be asked again."""


class Draining(EagleError):
    """No more requests are taken."""


def check_room(coming: int, serving: int, most: int, draining: bool) -> None:
    """Raise Draining, SettingError for more than ever fit, or Full unless all of some more may be
    served or wait."""
    if draining:
        raise Draining("shutting down: no more requests are taken")
    if coming > most:
        raise SettingError(f"{coming} answers at once: {most} at most, for prompts times n")
    if serving + coming > most:
        raise Full(f"{serving} requests run or wait, of {most} at most")


class Worker:
    """Serves generations that come from any thread, as many side by side as there are caches for;
    `most_waiting` more may wait."""

    def __init__(self, engine: Engine, most_waiting: int) -> None:
        self._engine = engine
        self.caches = len(engine.cache_slots.order)
        """Texts that fit side by side."""
        self._most = self.caches + most_waiting
        self._served = PendingRequests(engine)
        self._heard_by: dict[RequestId, Callable[[Heard], None]] = {}
        self._changed = threading.Condition()
        self._draining = self._closed = False
        self.outbox = Outbox()
        """For those who hear: what is in it is sent once a step. Whoever then wakes wants the
        interpreter, so that where a device computes it is sent when the next step has launched."""
        self._overlaps = engine.waits
        if self._overlaps:
            engine.on_launched = self._send
        self.steps_seconds = 0.0
        """Of all of them, with what is told of each."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread behind its step; those that are served hear no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def drain(self) -> None:
        """Take no more requests."""
        with self._changed:
            self._draining = True

    @property
    def forwards(self) -> Launches:
        """That steps have waited for."""
        return self._engine.launches

    @property
    def draining(self) -> bool:
        """Whether no more are taken."""
        return self._draining

    @property
    def serving(self) -> int:
        """Requests that have not ended."""
        return len(self._heard_by)

    @property
    def waiting(self) -> int:
        """Those among them that have no cache yet."""
        return max(0, self.serving - len(self._engine.running) - len(self._engine.prompts))

    def submit(self, *submitted: Submitted) -> list[RequestId]:
        """Serve all of some, or none. Raises as `check_room` does."""
        with self._changed:
            check_room(len(submitted), self.serving, self._most, self._draining or self._closed)
            numbers = [self._served.add(generation) for generation, _ in submitted]
            for number, (_, hear) in zip(numbers, submitted, strict=True):
                self._heard_by[number] = hear
            self._changed.notify_all()
        return numbers

    def cancel(self, *numbers: RequestId) -> None:
        """End requests before the next step, but for those that have ended."""
        for number in numbers:
            self._engine.cancel(number)
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._engine.busy)
                if self._closed:
                    break
            started = time.perf_counter()
            try:
                self._step()
            except Exception as error:  # a bug; nobody else would tell those that wait
                log.exception("a step of the engine failed")
                self._give_up(error)
            if not (self._overlaps and self._engine.busy):
                self._send()
            self.steps_seconds += time.perf_counter() - started
        self._send()

    def _send(self) -> None:
        try:
            self.outbox.send()
        except Exception:  # a bug; without this thread nobody else would be served
            log.exception("what a step had to tell could not be sent")

    def _step(self) -> None:
        for event in self._engine.step():
            with self._changed:  # `submit` may not have noted yet who hears it
                answer = self._served.take(event)
                hear = self._heard_by.pop(event.request) if answer is not None else None
            if answer is not None and hear is not None:
                hear(answer)

    def _give_up(self, error: Exception) -> None:
        with self._changed:
            self._engine.abandon()
            heard_by, self._heard_by = self._heard_by, {}
            self._served = PendingRequests(self._engine)
        for number, hear in heard_by.items():
            hear(Failed(number, reason(error), error))
