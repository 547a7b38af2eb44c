"""Metrics of a server, for Prometheus."""

import time
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.serve.worker import Worker

FIRST_TOKEN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
WHOLE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


class ServerLoad(Protocol):
    """The load of a server: sequences, requests that have not ended, and requests that wait for
    a sequence."""

    slots: int

    @property
    def pending(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class Metrics:
    """The metrics of one server."""

    def __init__(self, load: ServerLoad, *collectors: Collector) -> None:
        """`collectors` are other metrics on the same page."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # its memory, open files and time on the CPU
        for collector in collectors:
            registry.register(collector)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"eagle_{name}", text, labels, registry=registry)

        self._requests = counter("requests", "Answers, by how they ended.", "outcome")
        self._refused = counter("error_responses", "Error responses.", "status", "code")
        text = "Connections that were ended: late, too long, too many, or malformed."
        self._closed = counter("connections_ended", text, "reason")
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._cached = counter("prompt_tokens_cached", "Tokens of prompts that were cached.")
        self._tokens = counter("generated_tokens", "Tokens of answers.")
        self._rounds = counter("rounds", "Verify forwards of an answer.")
        self._reached = counter("drafts_reached", "Drafts verified.", "position")
        self._accepted = counter("drafts_accepted", "Drafts accepted.", "position")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"eagle_{name}_seconds", text, buckets=buckets, registry=registry)

        text = "From the request to the first token."
        self._first = histogram("time_to_first_token", text, FIRST_TOKEN)
        text = "An answer's mean, after the first token."
        self._between = histogram("time_per_token", text, BETWEEN)
        self._whole = histogram("request", "From the request to the end.", WHOLE)
        for name, text, value in (
            ("eagle_requests_waiting", "Requests without a cache.", lambda: load.waiting),
            ("eagle_requests_in_progress", "Requests that have not ended.", lambda: load.pending),
            ("eagle_caches", "Requests that run in parallel.", lambda: load.slots),
        ):
            Gauge(name, text, registry=registry).set_function(value)

    def ended(self, result: Result, first_token: float | None, seconds: float) -> None:
        """Count an answer. Its first token, if it has one, came after `first_token` seconds from
        the request, its end after `seconds`."""
        self._requests.labels(result.finish_reason).inc()
        self._prompt.inc(result.prompt_tokens)
        self._cached.inc(result.cached_tokens)
        self._tokens.inc(len(result.token_ids))
        self._rounds.inc(result.stats.rounds)
        for position, count in enumerate(result.stats.reached, start=1):
            self._reached.labels(str(position)).inc(count)
        for position, count in enumerate(result.stats.accepted_at, start=1):
            self._accepted.labels(str(position)).inc(count)
        self._whole.observe(seconds)
        if first_token is not None and result.token_ids:
            self._first.observe(first_token)
            if (others := len(result.token_ids) - 1) > 0:
                self._between.observe((seconds - first_token) / others)

    def failed(self, outcome: str) -> None:
        """Count a request that has no answer."""
        self._requests.labels(outcome).inc()

    def refused(self, status: int, code: str) -> None:
        """Count an error response."""
        self._refused.labels(str(status), code).inc()

    def connection_ended(self, reason: str) -> None:
        """Count a connection that was ended: `late`, `too_long`, `too_many` or `malformed`."""
        self._closed.labels(reason).inc()

    @property
    def content(self) -> bytes:
        """The page at /metrics."""
        return generate_latest(self._registry)


class EngineTimeCollector(Collector):
    """Counts where the time of the engine's thread goes, and the CPU time of the thread that
    answers clients."""

    def __init__(self, steps: Worker) -> None:
        self._steps = steps
        self._host = 0.0

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters. Called in the thread that answers clients."""
        launches = self._steps.launches
        rounds, prompts = launches.rounds_seconds, launches.prompts_seconds
        seconds = CounterMetricFamily(
            "eagle_engine_seconds",
            "Time of the engine's thread: in rounds, in prompts, and between them (host).",
            labels=["in"],
        )
        seconds.add_metric(["rounds"], rounds)
        seconds.add_metric(["prompts"], prompts)
        # Within a step its launch is counted before the step is: the counter must not go back.
        self._host = max(self._host, self._steps.step_seconds - rounds - prompts)
        seconds.add_metric(["host"], self._host)
        yield seconds
        text = "Verify forwards of all requests together."
        yield CounterMetricFamily("eagle_engine_rounds", text, value=launches.rounds)
        text = "Requests that gave up their caches' memory and ran again."
        yield CounterMetricFamily("eagle_preemptions", text, value=launches.preemptions)
        text = "CPU time of the thread that answers clients."
        yield CounterMetricFamily("eagle_answering_cpu_seconds", text, value=time.thread_time())
