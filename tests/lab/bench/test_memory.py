"""The read bandwidth, on a device whose time is scripted, and peak memory by part."""

import itertools

import pytest
import torch

from eagle_aot.lab.bench import memory
from eagle_aot.lab.bench.memory import all_parts, peak_memory
from eagle_aot.lab.bench.timing import HostClock
from support.runner.logging_executor import LoggingExecutor


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


def test_on_the_cpu_there_is_one_figure() -> None:
    (name, size), *others = peak_memory(LoggingExecutor(), 0, 0).items()
    assert (name, others) == ("process", [])
    assert size > 10e6
