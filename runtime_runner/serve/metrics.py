"""What a server counts, as Prometheus reads it."""

from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

from eagle_aot.runtime_runner.frontend.result import Result

FIRST_TOKEN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
WHOLE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


class Load(Protocol):
    """How much there is to do: texts that fit side by side, requests that have not ended, and
    those among them that wait."""

    caches: int

    @property
    def serving(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class Metrics:
    """Of one server; `content` is the page at /metrics, with what `more` collects."""

    def __init__(self, load: Load, *more: Collector) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # its memory, open files and time on the CPU
        for collector in more:
            registry.register(collector)
        self._requests = Counter(
            "eagle_requests", "Answers by how they ended.", ["outcome"], registry=registry
        )
        self._prompt = Counter("eagle_prompt_tokens", "Of prompts.", registry=registry)
        self._cached = Counter(
            "eagle_prompt_tokens_cached", "Of prompts, not run again.", registry=registry
        )
        self._tokens = Counter("eagle_generated_tokens", "Of answers.", registry=registry)
        self._rounds = Counter("eagle_rounds", "Verify forwards of a text.", registry=registry)
        self._reached = Counter(
            "eagle_drafts_reached", "Drafts looked at.", ["position"], registry=registry
        )
        self._accepted = Counter(
            "eagle_drafts_accepted", "Drafts accepted.", ["position"], registry=registry
        )
        self._first = Histogram(
            "eagle_time_to_first_token_seconds", "From the request on.", buckets=FIRST_TOKEN,
            registry=registry,
        )  # fmt: skip
        self._between = Histogram(
            "eagle_time_per_token_seconds", "Behind the first, of an answer's mean.",
            buckets=BETWEEN, registry=registry,
        )  # fmt: skip
        self._whole = Histogram(
            "eagle_request_seconds", "From the request on to the end.", buckets=WHOLE,
            registry=registry,
        )  # fmt: skip
        for name, text, value in (
            ("eagle_requests_waiting", "Without a cache.", lambda: load.waiting),
            ("eagle_requests_in_progress", "Waiting ones included.", lambda: load.serving),
            ("eagle_caches", "Texts that fit side by side.", lambda: load.caches),
        ):
            Gauge(name, text, registry=registry).set_function(value)

    def ended(self, result: Result, first_token: float | None, seconds: float) -> None:
        """An answer: when its first token came, if one did, and its end, in seconds from when it
        was asked for."""
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
        """A request that has no answer."""
        self._requests.labels(outcome).inc()

    @property
    def content(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
