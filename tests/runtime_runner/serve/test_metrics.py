"""Counters of an engine's time, as Prometheus reads them."""

import time
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from eagle_aot.runtime_runner.engine.turns import Launches
from eagle_aot.runtime_runner.serve.metrics import EngineTimeCollector
from eagle_aot.runtime_runner.serve.worker import Worker


class TenSeconds:
    """An engine's thread that has run steps for ten seconds."""

    step_seconds = 10.0
    launches = Launches()


def test_time_outside_of_launches_is_the_hosts() -> None:
    launches = TenSeconds.launches
    launches.rounds, launches.rounds_seconds, launches.prompts_seconds = 7, 6.0, 3.5
    registry = CollectorRegistry()
    registry.register(EngineTimeCollector(cast(Worker, TenSeconds())))
    values = [
        registry.get_sample_value("eagle_engine_seconds_total", {"in": name})
        for name in ("rounds", "prompts", "host")
    ]
    assert values == [6.0, 3.5, 0.5]
    assert registry.get_sample_value("eagle_engine_rounds_total") == 7
    seconds = registry.get_sample_value("eagle_answering_cpu_seconds_total")
    assert seconds is not None and 0 < seconds <= time.thread_time()


def test_a_launch_that_fails_is_not_counted() -> None:
    launches = Launches()
    with pytest.raises(MemoryError), launches.round():
        raise MemoryError
    with pytest.raises(MemoryError), launches.chunk():
        raise MemoryError
    assert vars(launches) == vars(Launches())
