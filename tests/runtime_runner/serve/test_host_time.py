"""Where an engine's time goes, as Prometheus reads it."""

import time

import pytest
from prometheus_client import CollectorRegistry

from eagle_aot.runtime_runner.engine.turns import Launches
from eagle_aot.runtime_runner.serve.host_time import HostTime


class Steps:
    """Ten seconds of them."""

    steps_seconds = 10.0
    forwards = Launches()


def test_what_is_no_forward_is_the_hosts() -> None:
    forwards = Steps.forwards
    forwards.rounds, forwards.rounds_seconds, forwards.prompts_seconds = 7, 6.0, 3.5
    registry = CollectorRegistry()
    registry.register(HostTime(Steps()))
    found = [
        registry.get_sample_value("eagle_engine_seconds_total", {"in": name})
        for name in ("rounds", "prompts", "host")
    ]
    assert found == [6.0, 3.5, 0.5]
    assert registry.get_sample_value("eagle_engine_rounds_total") == 7
    told = registry.get_sample_value("eagle_answering_cpu_seconds_total")
    assert told is not None and 0 < told <= time.thread_time()


def test_a_forward_that_fails_does_not_count() -> None:
    forwards = Launches()
    with pytest.raises(MemoryError), forwards.round():
        raise MemoryError
    with pytest.raises(MemoryError), forwards.chunk():
        raise MemoryError
    assert vars(forwards) == vars(Launches())
