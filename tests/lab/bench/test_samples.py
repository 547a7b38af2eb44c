"""What a round's samples come to, on a device and a host whose time is scripted, and its copies to
the host in a profile that is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from eagle_aot.lab.bench import samples
from eagle_aot.lab.bench.samples import RoundSeries, host_copies
from eagle_aot.lab.bench.timing import HostClock, Timed

COPY = 0.5  # milliseconds from the device's last kernel until the host has its tokens
PER_ROUND = ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)", "gemm")


class Machine:
    """A host that takes `launch` milliseconds to hand a round over, and a device that begins with
    its first kernel and takes `run` milliseconds of its own, or as long as the host takes."""

    is_host = False

    def __init__(self, launch: float, run: float) -> None:
        self._launch, self._run = launch, run
        self.now = 0.0  # the host's clock, in milliseconds
        self.idle_from = 0.0  # when the device is done

    def seconds(self) -> float:
        return self.now / 1e3

    def start(self) -> "Span":
        return Span(self)

    def settle(self) -> None:
        self.now = max(self.now, self.idle_from)

    def play(self) -> Tensor:
        begun = max(self.now, self.idle_from)
        self.now += self._launch
        self.idle_from = max(begun + self._run, self.now)
        return Result(self)

    def read(self) -> None:
        self.settle()
        self.now += COPY


class Span:
    """Between two events on the device."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._from = self._to = max(machine.now, machine.idle_from)

    def stop(self) -> None:
        self._to = max(self._machine.now, self._machine.idle_from)

    def milliseconds(self) -> float:
        return self._to - self._from


class Result(Tensor):
    """A round's tokens, which the host has to wait for."""

    @staticmethod
    def __new__(cls, machine: Machine) -> "Result":
        return torch.zeros(1).as_subclass(cls)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def tolist(self) -> list[int]:
        self._machine.read()
        return []


def series_on(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> RoundSeries:
    monkeypatch.setattr(time, "perf_counter", machine.seconds)
    series = RoundSeries(machine, Timed(machine.play, lambda: None, moves=True))
    for _ in range(3):
        series.sample()
    return series


def test_a_replayed_round_is_launched_long_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    series = series_on(monkeypatch, Machine(launch=0.1, run=8.0))
    assert series.launch_ms == pytest.approx(0.1)
    assert series.wall.ms == pytest.approx(8.0 + COPY)
    assert series.host_ms == pytest.approx(COPY)


def test_the_launch_shows_a_host_bound_round_where_the_host_figure_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series = series_on(monkeypatch, Machine(launch=20.0, run=8.0))
    assert series.host_ms == pytest.approx(COPY)
    assert series.launch_ms == pytest.approx(20.0)
    assert series.launch_ms and series.host_ms is not None
    assert series.launch_ms > 0.9 * (series.wall.ms - series.host_ms)


def test_where_the_host_is_the_device_nothing_is_launched() -> None:
    series = RoundSeries(HostClock(), Timed(lambda: torch.zeros(1), lambda: None, moves=True))
    series.sample()
    assert series.wall.ms > 0
    assert series.launch_ms is series.host_ms is None


@pytest.mark.parametrize(("seen", "copies"), [(PER_ROUND, 1.0), (PER_ROUND[1:], None)])
def test_copies_to_the_host_are_counted_per_round(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[str, ...], copies: float | None
) -> None:
    events: list[SimpleNamespace] = []

    @contextmanager
    def profile(activities: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(events=lambda: events)

    def play() -> torch.Tensor:
        events.extend(SimpleNamespace(name=name) for name in seen)
        return torch.tensor([1])

    monkeypatch.setattr(samples, "profile", profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert host_copies(Timed(play, lambda: None, moves=True)) == copies
