"""Samples, read bandwidth and peak memory, on a device whose time is scripted."""

import itertools
import time
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor

from eagle_aot.lab.bench import memory
from eagle_aot.lab.bench.memory import all_parts, peak_memory
from eagle_aot.lab.bench.timing import (
    MAX_CALLS,
    WARM_UPS,
    CudaClock,
    HostClock,
    Measure,
    Series,
    Timed,
    calls_for,
    clock_for,
    time_on_device,
    time_on_host,
    time_to_launch,
)
from support.runner.logging_executor import LoggingExecutor


class ScriptedClock:
    """A device that takes the given milliseconds per call, and a log of all that happens."""

    is_host = False

    def __init__(self, duration: Callable[[int], float]) -> None:
        self.log: list[str] = []
        self.now = 0.0
        self._duration = duration
        self._played = 0

    def start(self) -> "ScriptedSpan":
        self.log.append("start")
        return ScriptedSpan(self)

    def settle(self) -> None:
        self.log.append("settle")

    def play(self) -> Tensor:
        self.now += self._duration(self._played)
        self._played += 1
        self.log.append("play")
        return torch.tensor([self._played])

    def timed(self, *, moves: bool) -> Timed:
        """A step of this device."""
        return Timed(self.play, lambda: self.log.append("prepare"), moves)


class ScriptedSpan:
    def __init__(self, clock: ScriptedClock) -> None:
        self._clock, self._from, self._to = clock, clock.now, clock.now

    def stop(self) -> None:
        self._clock.log.append("stop")
        self._to = self._clock.now

    def milliseconds(self) -> float:
        self._clock.log.append("read")
        return self._to - self._from


def test_calls_of_a_step_that_stays_are_one_span_after_an_uncounted_call() -> None:
    clock = ScriptedClock(lambda call: [100.0, 1.0, 2.0, 6.0][call])
    assert time_on_device(clock, clock.timed(moves=False), 3) == 3.0
    ahead, calls = ["prepare", "play"], ["play"] * 3
    assert clock.log == [*ahead, "prepare", "start", *calls, "stop", "read"]


def test_a_step_that_moves_is_put_back_before_every_call_and_nothing_is_waited_for() -> None:
    clock = ScriptedClock(lambda call: [100.0, 1.0, 2.0][call])
    assert time_on_device(clock, clock.timed(moves=True), 2) == 1.5
    call = ["prepare", "start", "play", "stop"]
    assert clock.log == ["prepare", "play", *call, *call, "read", "read"]


def test_wall_time_starts_on_an_idle_device() -> None:
    clock = ScriptedClock(lambda call: 1.0)
    assert time_on_host(clock, clock.timed(moves=True), 2) > 0
    assert clock.log == ["prepare", "settle", "play"] * 2


class Unread:
    """A result that says when the host asks for it."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def tolist(self) -> list[int]:
        self._log.append("read result")
        return []


@pytest.mark.parametrize(
    ("measure", "call"), [(time_on_host, ["play", "read result"]), (time_to_launch, ["play"])]
)
def test_a_launch_ends_before_its_result_is_read(measure: Measure, call: list[str]) -> None:
    clock = ScriptedClock(lambda call: 1.0)

    def play() -> Tensor:
        clock.play()
        return cast(Tensor, Unread(clock.log))

    assert measure(clock, Timed(play, lambda: clock.log.append("prepare"), moves=True), 2) > 0
    assert clock.log == ["prepare", "settle", *call] * 2


def test_a_launch_is_timed_by_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock = ScriptedClock(lambda call: 100.0)

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    def play() -> Tensor:
        spend(0.002)
        return clock.play()

    assert time_to_launch(clock, Timed(play, lambda: spend(1.0)), 3) == pytest.approx(2.0)


def test_a_sample_makes_the_given_number_of_calls() -> None:
    clock = ScriptedClock(lambda call: 0.01)
    series = Series(clock, clock.timed(moves=True), time_to_launch, calls=2)
    assert clock.log == ["prepare", "play"] * WARM_UPS
    clock.log.clear()
    series.sample()
    assert clock.log == ["prepare", "settle", "play"] * 2


def test_a_series_warms_up_and_gives_the_median() -> None:
    times = iter([50.0] * (WARM_UPS + 1) + [20.0] + [0.0, 30.0, 0.0, 10.0, 0.0, 90.0])
    clock = ScriptedClock(lambda call: next(times))
    series = Series(clock, clock.timed(moves=False))
    for _ in range(3):
        series.sample()
    assert series.ms == 30.0


@pytest.mark.parametrize(
    ("milliseconds", "calls"), [(25.0, 1), (10.0, 1), (9.9, 2), (0.1, 100), (0.0, MAX_CALLS)]
)
def test_a_sample_lasts_some_milliseconds(milliseconds: float, calls: int) -> None:
    assert calls_for(milliseconds) == calls


def test_the_host_clock_measures_the_host() -> None:
    span = HostClock().start()
    torch.randn(1000).sort()
    span.stop()
    assert span.milliseconds() > 0


def test_each_device_has_its_clock() -> None:
    assert isinstance(clock_for(torch.device("cpu")), HostClock)
    assert isinstance(clock_for(torch.device("cuda", 0)), CudaClock)


def test_the_bandwidth_is_bytes_over_the_fastest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * memory.COLUMNS * 16
    monkeypatch.setitem(memory.BUFFER_BYTES, "cpu", size)
    times = itertools.chain((9.0, 3.0, 2.0, 4.0), itertools.repeat(5.0))
    monkeypatch.setattr(memory, "time_on_device", lambda clock, timed, calls: next(times))
    bandwidth = memory.read_bandwidth(HostClock(), torch.device("cpu"))
    assert bandwidth == pytest.approx(size / 2e-3)


def test_parts_add_up_to_what_is_in_use() -> None:
    permanent = {"target weights": 700, "draft cache": 50}
    parts = all_parts(permanent, 1000, 1100, 40, 1145)
    assert parts.items() > permanent.items()
    assert list(parts.values())[len(permanent) :] == [250, 100, 40, 5]
    assert sum(parts.values()) == 1145


@pytest.mark.parametrize(
    ("reserved", "in_use", "added"),
    [
        (900, 945, [250, 0, 40, 5]),  # PyTorch has freed 100 since the peak
        (1100, 1120, [250, 100, 40, 0]),  # another process has freed 20
        (900, 900, [250, 0, 40, 0]),  # both
    ],
)
def test_no_part_is_negative(reserved: int, in_use: int, added: list[int]) -> None:
    permanent = {"target weights": 700, "draft cache": 50}
    parts = all_parts(permanent, 1000, reserved, 40, in_use)
    assert list(parts.values())[len(permanent) :] == added


def test_on_the_cpu_there_is_one_figure() -> None:
    (name, size), *others = peak_memory(LoggingExecutor(), 0, 0).items()
    assert (name, others) == ("process", [])
    assert size > 10e6
