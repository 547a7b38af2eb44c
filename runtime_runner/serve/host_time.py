"""Where an engine's time goes, as Prometheus reads it."""

import time
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from eagle_aot.runtime_runner.engine.turns import Launches


class Steps(Protocol):
    """Of an engine in a thread of its own: seconds of all of them, and what they waited for."""

    steps_seconds: float

    @property
    def forwards(self) -> Launches: ...


class HostTime(Collector):
    """Where the time of an engine's thread goes, and what requests cost the processor."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._host = 0.0

    def collect(self) -> Iterator[CounterMetricFamily]:
        """In the thread that answers requests."""
        forwards = self._steps.forwards
        rounds, prompts = forwards.rounds_seconds, forwards.prompts_seconds
        seconds = CounterMetricFamily(
            "eagle_engine_seconds",
            "Of the engine's thread: until forwards have given tokens, and beside them (host).",
            labels=["in"],
        )
        seconds.add_metric(["rounds"], rounds)
        seconds.add_metric(["prompts"], prompts)
        # In the middle of a step its forward is counted before the step is: a counter stays then.
        self._host = max(self._host, self._steps.steps_seconds - rounds - prompts)
        seconds.add_metric(["host"], self._host)
        yield seconds
        name, text = "eagle_engine_rounds", "Verify forwards of all texts that run."
        yield CounterMetricFamily(name, text, value=forwards.rounds)
        name, text = "eagle_answering_cpu_seconds", "Of the thread that speaks with clients."
        yield CounterMetricFamily(name, text, value=time.thread_time())
