"""Timing a step on the device that runs it."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from eagle_aot.runtime_runner.program.executor import Call

SAMPLE_MS = 10.0  # long enough that one launch's delay does not count
MAX_CALLS = 1000
WARM_UPS = 3  # the first call loads, the second may record, the third is like all others


class Span(Protocol):
    """A measured stretch of the device's time."""

    def stop(self) -> None:
        """End it here."""

    def milliseconds(self) -> float:
        """Return its length; wait until the device has reached its end."""


class Clock(Protocol):
    """The clock of one device, which may be the host itself."""

    is_host: bool

    def start(self) -> Span:
        """Start a span."""

    def settle(self) -> None:
        """Wait until the device is idle."""


class HostSpan:
    """A span by the host's clock."""

    def __init__(self) -> None:
        self._stopped = 0.0
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    def milliseconds(self) -> float:
        return 1e3 * (self._stopped - self._started)


class HostClock:
    """The clock where the host is the device."""

    is_host = True

    def start(self) -> Span:
        return HostSpan()

    def settle(self) -> None:
        """The host runs nothing asynchronously."""


class CudaSpan:
    """A span between two events in the current stream, waiting for launches included."""

    def __init__(self) -> None:
        self._started = torch.cuda.Event(enable_timing=True)
        self._stopped = torch.cuda.Event(enable_timing=True)
        self._started.record()

    def stop(self) -> None:
        self._stopped.record()

    def milliseconds(self) -> float:
        self._stopped.synchronize()
        return self._started.elapsed_time(self._stopped)


class CudaClock:
    """The clock of the current CUDA device."""

    is_host = False

    def start(self) -> Span:
        return CudaSpan()

    def settle(self) -> None:
        torch.cuda.synchronize()


def clock_for(device: torch.device) -> Clock:
    """Return the clock of the device that an executor runs on."""
    return CudaClock() if device.type == "cuda" else HostClock()


@dataclass(frozen=True, slots=True)
class Timed:
    """A step to time, and its untimed preparation.

    A step that `moves` undoes its preparation, and is prepared before every call.
    """

    run: Call
    prepare: Callable[[], None]
    moves: bool = False


def time_on_device(clock: Clock, timed: Timed, calls: int) -> float:
    """Return the milliseconds of device time per call, the mean of `calls`.

    All calls are launched before the first is waited for, after one more call during which the host
    gets ahead of the device, if launching takes less time than running. If it does not, the figure
    is the host's time to launch: see `time_to_launch`.
    """
    bursts, burst = (calls, 1) if timed.moves else (1, calls)
    timed.prepare()
    timed.run()
    spans = []
    for _ in range(bursts):
        timed.prepare()
        span = clock.start()
        for _ in range(burst):
            timed.run()
        span.stop()
        spans.append(span)
    return sum(span.milliseconds() for span in spans) / calls


def time_on_host(clock: Clock, timed: Timed, calls: int) -> float:
    """Return the host's milliseconds per call whose result it reads, starting from an idle device.

    This is a call's time in a loop that needs each result before the next call.
    """
    return _from_idle(clock, timed, calls, lambda: timed.run().tolist())


def time_to_launch(clock: Clock, timed: Timed, calls: int) -> float:
    """Return the host's milliseconds until a call returns, starting from an idle device.

    The device may still run. A launch time near or above the device's time means that the host sets
    the pace; it waits for the device only where the queue of kernels is full.
    """
    return _from_idle(clock, timed, calls, timed.run)


def _from_idle(clock: Clock, timed: Timed, calls: int, call: Callable[[], object]) -> float:
    total = 0.0
    for _ in range(calls):
        timed.prepare()
        clock.settle()
        span = HostSpan()
        call()
        span.stop()
        total += span.milliseconds()
    return total / calls


Measure = Callable[[Clock, Timed, int], float]


class Series:
    """Samples of one step; steps are sampled in turn, so that a drift affects all of them."""

    def __init__(
        self,
        clock: Clock,
        timed: Timed,
        measure: Measure = time_on_device,
        calls: int | None = None,
    ) -> None:
        """Warm the step up; choose how many `calls` make a sample, where that is None."""
        self._clock = clock
        self._timed = timed
        self._measure = measure
        self.warm_up(WARM_UPS)
        self.calls = calls or calls_for(measure(clock, timed, 1))
        self._samples: list[float] = []

    def warm_up(self, calls: int) -> None:
        """Run the step without measuring it."""
        for _ in range(calls):
            self._timed.prepare()
            self._timed.run()

    def sample(self) -> None:
        """Take one more sample."""
        self._samples.append(self._measure(self._clock, self._timed, self.calls))

    @property
    def ms(self) -> float:
        """The median, in milliseconds per call."""
        return statistics.median(self._samples)


def calls_for(milliseconds: float) -> int:
    """Return how many calls of that length make one sample."""
    return min(MAX_CALLS, max(1, math.ceil(SAMPLE_MS / max(milliseconds, 1e-6))))
