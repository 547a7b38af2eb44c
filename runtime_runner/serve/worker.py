"""The engine in a thread of its own, and what it sends to event loops."""

import logging
import math
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.runtime_runner.engine import Engine, Failed
from eagle_aot.runtime_runner.engine.request import RequestId, reason
from eagle_aot.runtime_runner.frontend.generation import Generation, PendingRequests, Result

log = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0
"""How long a step that has begun is waited for when the server ends."""

RequestOutcome = Result | Failed
OnEnd = Callable[[RequestOutcome], None]
Submission = tuple[Generation, OnEnd]
"""A generation, and a function that the worker's thread calls with the outcome. Like the callbacks
of the generation, it must not block."""
Call = tuple[Callable[..., None], tuple[Any, ...]]


class QueueFull(EagleError):
    """The queue is full. The client may try again."""


class Draining(EagleError):
    """The server is shutting down and accepts no more requests."""


def check_capacity(new: int, pending: int, limit: int, draining: bool) -> None:
    """Raise Draining, SettingError for `new` requests that never fit, or QueueFull for requests
    that do not fit now: `limit` may run or wait, and `pending` do."""
    if draining:
        raise Draining("shutting down: no more requests are taken")
    if new > limit:
        raise SettingError(f"{new} answers at once: {limit} at most, for prompts times n")
    if pending + new > limit:
        raise QueueFull(f"{pending} requests run or wait, of {limit} at most")


class Outbox:
    """Collects calls for event loops of other threads, and sends them together after each step.

    Each separate call would wake its loop, which would take the interpreter lock while this thread
    still has events to process and a round to launch.
    """

    def __init__(self) -> None:
        self._calls: dict[AbstractEventLoop, list[Call]] = {}

    def add(self, loop: AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
        """Add a call for the next `send`."""
        self._calls.setdefault(loop, []).append((call, arguments))

    def send(self) -> None:
        """Make all calls, in their order. Calls for a closed loop are dropped and logged."""
        sent, self._calls = self._calls, {}
        for loop, calls in sent.items():
            try:
                loop.call_soon_threadsafe(make_calls, calls)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                log.warning("an event loop is closed: calls for it that are lost: %d", len(calls))


def make_calls(calls: list[Call]) -> None:
    """Make calls in this thread."""
    for call, arguments in calls:
        call(*arguments)


class Worker:
    """Runs generations from any thread, as many in parallel as there are sequences;
    `max_waiting` more may wait."""

    def __init__(
        self, engine: Engine, max_waiting: int, max_step_seconds: float = math.inf
    ) -> None:
        """A step that takes longer than `max_step_seconds` is a failure of the engine."""
        self._engine, self._max_step_seconds = engine, max_step_seconds
        self.slots = len(engine.sequence_pool.order)
        """Requests that run in parallel."""
        self.launches = engine.launches
        """The time that steps have waited for the device."""
        self._limit = self.slots + max_waiting
        self._requests = PendingRequests(engine)
        self._on_end: dict[RequestId, OnEnd] = {}
        self._changed = threading.Condition()
        self._closed = self.draining = False
        """`draining`: no more requests are accepted."""
        self.outbox = Outbox()
        """Sent once a step; where a device computes, after the next launch, because the loops that
        it wakes take the interpreter lock."""
        self._overlaps = engine.is_asynchronous
        if self._overlaps:
            engine.on_launched = self._send
        self._step_started: float | None = None  # by `time.perf_counter`, None between steps
        self.step_seconds = 0.0
        """Time of all steps, with the processing of their events."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._engine.has_thread = True
        self._thread.start()

    def close(self) -> None:
        """End the thread after its current step, for which this waits a while. Pending requests get
        no outcome."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        self._engine.has_thread = self._thread.is_alive()

    @property
    def failure(self) -> str | None:
        """Why no request will be served any more, None while the engine's thread does its work."""
        if self._thread.ident is None or self._closed:
            return None
        if not self._thread.is_alive():
            return "its thread has ended"
        started, most = self._step_started, self._max_step_seconds
        if started is not None and time.perf_counter() - started > most:
            return f"a step takes longer than {most:g} s"
        return None

    def drain(self) -> None:
        """Accept no more requests."""
        with self._changed:
            self.draining = True

    @property
    def pending(self) -> int:
        """The number of requests that have not ended."""
        return len(self._on_end)

    @property
    def waiting(self) -> int:
        """The number of pending requests that have no sequence yet."""
        return max(0, self.pending - len(self._engine.running) - len(self._engine.prefilling))

    def submit(self, *submissions: Submission) -> list[RequestId]:
        """Accept either all generations or none. Raises as `check_capacity` does."""
        with self._changed:
            draining = self.draining or self._closed or self.failure is not None
            check_capacity(len(submissions), self.pending, self._limit, draining)
            numbers = [self._requests.add(generation) for generation, _ in submissions]
            for number, (_, on_end) in zip(numbers, submissions, strict=True):
                self._on_end[number] = on_end
            self._changed.notify_all()
        return numbers

    def cancel(self, *numbers: RequestId) -> None:
        """End requests before the next step, except those that have ended."""
        for number in numbers:
            self._engine.cancel(number)
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while self._wait():
                self._run_step()
        except BaseException as error:  # not even the engine's state could be reset
            log.critical("the engine cannot continue", exc_info=True)
            self.end_all(error)
        self._send()

    def _wait(self) -> bool:
        """Wait until there is something to do. Returns whether there is: else the worker closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._engine.busy)
            return not self._closed

    def _run_step(self) -> None:
        self._step_started = started = time.perf_counter()
        try:
            self._step()
        except BaseException as error:  # a bug; requests would wait forever
            log.exception("a step of the engine failed")
            with self._changed:
                self._engine.abandon()
                self.end_all(error)
        if not (self._overlaps and self._engine.busy):
            self._send()
        self._step_started = None
        self.step_seconds += time.perf_counter() - started

    def _send(self) -> None:
        try:
            self.outbox.send()
        except Exception:  # a bug; without this thread no request would be served
            log.exception("the events of a step could not be sent")

    def _step(self) -> None:
        events = self._engine.step()
        with self._changed:
            pass  # `submit` may not have stored the functions of a new request yet
        for event in events:
            outcome = self._requests.take(event)
            if outcome is None:
                continue
            if isinstance(outcome, Failed) and not outcome.is_expected:
                log.error("a request failed", exc_info=outcome.cause)
            report(self._on_end.pop(event.request), outcome)

    def end_all(self, error: BaseException) -> None:
        """End all requests with an error. Any thread may call it once the engine's has failed."""
        with self._changed:
            functions, self._on_end = self._on_end, {}
            self._requests = PendingRequests(self._engine)
        for number, on_end in functions.items():
            report(on_end, Failed(number, reason(error), error))
        self._send()


def report(on_end: OnEnd, outcome: RequestOutcome) -> None:
    """Call a function with an outcome. An error of its own concerns no other request."""
    try:
        on_end(outcome)
    except BaseException:
        log.exception("the end of a request could not be reported")
