"""Timing a step on the device that runs it."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from eagle_aot.runtime_runner.program.executor import Call

SAMPLE_MS = 10.0  # long enough that one launch's delay is nothing in it
MAX_CALLS = 1000
WARM_UPS = 3  # the first call loads, the second may record, the third is like all others


class Span(Protocol):
    """A stretch of the device's time that has begun."""

    def stop(self) -> None:
        """End it here."""

    def milliseconds(self) -> float:
        """Its length, once the device has got there; waits for that."""


class Clock(Protocol):
    """Measures the time of one device, which may be the host itself."""

    is_host: bool

    def start(self) -> Span:
        """A span from here on."""

    def settle(self) -> None:
        """Wait until the device is idle."""


class HostSpan:
    """By the host's clock."""

    def __init__(self) -> None:
        self._stopped = 0.0
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    def milliseconds(self) -> float:
        return 1e3 * (self._stopped - self._started)


class HostClock:
    """The host is the device."""

    is_host = True

    def start(self) -> Span:
        return HostSpan()

    def settle(self) -> None:
        """Nothing runs behind the host's back."""


class CudaSpan:
    """Between two events in the current stream. What the device waits in between for a host that
    launches more slowly than it runs is in it."""

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
    """The current CUDA device."""

    is_host = False

    def start(self) -> Span:
        return CudaSpan()

    def settle(self) -> None:
        torch.cuda.synchronize()


def clock_for(device: torch.device) -> Clock:
    """The clock of the device that an executor runs on."""
    return CudaClock() if device.type == "cuda" else HostClock()


@dataclass(frozen=True, slots=True)
class Timed:
    """A step to time, and what readies it, untimed.

    A step that `moves` undoes what `prepare` did, so that it is prepared before every call.
    """

    play: Call
    prepare: Callable[[], None]
    moves: bool = False


def time_on_device(clock: Clock, timed: Timed, calls: int) -> float:
    """Milliseconds of device time per call, the mean of `calls` of them.

    All of them are handed over before the first is waited for; one more goes ahead, behind which
    the host gets in front of the device, if launching a call takes it less time than running takes
    the device. If not, the figure is the host's time for launching: see `time_to_launch`.
    """
    bursts, burst = (calls, 1) if timed.moves else (1, calls)
    timed.prepare()
    timed.play()
    spans = []
    for _ in range(bursts):
        timed.prepare()
        span = clock.start()
        for _ in range(burst):
            timed.play()
        span.stop()
        spans.append(span)
    return sum(span.milliseconds() for span in spans) / calls


def time_on_host(clock: Clock, timed: Timed, calls: int) -> float:
    """Milliseconds of the host's time per call whose result it reads, from an idle device on.

    That is what a call costs in a loop that needs each result before it goes on.
    """
    return _from_idle(clock, timed, calls, lambda: timed.play().tolist())


def time_to_launch(clock: Clock, timed: Timed, calls: int) -> float:
    """Milliseconds of the host's time per call until it returns, from an idle device on.

    The device goes on behind it. A launch near or above the device's time means that the host sets
    the pace; it waits for the device only where so many kernels are pending that no more fit.
    """
    return _from_idle(clock, timed, calls, timed.play)


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
    """Samples of one step, to be taken in turn with other steps', so that a drift meets all."""

    def __init__(
        self,
        clock: Clock,
        timed: Timed,
        measure: Measure = time_on_device,
        calls: int | None = None,
    ) -> None:
        """Warms the step up and chooses how many calls make a sample, unless that is given."""
        self._clock = clock
        self._timed = timed
        self._measure = measure
        for _ in range(WARM_UPS):
            timed.prepare()
            timed.play()
        self.calls = calls or calls_for(measure(clock, timed, 1))
        self._samples: list[float] = []

    def sample(self) -> None:
        """Take one more."""
        self._samples.append(self._measure(self._clock, self._timed, self.calls))

    @property
    def ms(self) -> float:
        """The median, in milliseconds per call."""
        return statistics.median(self._samples)


def calls_for(milliseconds: float) -> int:
    """How many calls of that length make one sample."""
    return min(MAX_CALLS, max(1, math.ceil(SAMPLE_MS / max(milliseconds, 1e-6))))
