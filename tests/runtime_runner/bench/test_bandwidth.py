"""The read bandwidth, on a device whose time is scripted."""

import itertools

import pytest
import torch

from eagle_aot.runtime_runner.bench import bandwidth
from eagle_aot.runtime_runner.bench.timing import HostClock


def test_the_bandwidth_is_bytes_over_the_fastest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * bandwidth.COLUMNS * 16
    monkeypatch.setitem(bandwidth.BUFFER_BYTES, "cpu", size)
    times = itertools.chain((9.0, 3.0, 2.0, 4.0), itertools.repeat(5.0))
    monkeypatch.setattr(bandwidth, "time_on_device", lambda clock, timed, calls: next(times))
    found = bandwidth.read_bandwidth(HostClock(), torch.device("cpu"))
    assert found == pytest.approx(size / 2e-3)
