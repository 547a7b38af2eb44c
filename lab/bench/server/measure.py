"""Times of an engine alone and of a server of it, under the same load."""

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import httpx

from eagle_aot.common.errors import EagleError
from eagle_aot.lab.bench.server.processes import answer_alone, send_requests

if TYPE_CHECKING:
    from eagle_aot.lab.bench.server.cli import KnownTexts, Load

WARM_UP_TOKENS = 16
METRICS_TIMEOUT = 120.0  # seconds
ENGINE = "eagle_engine_seconds_total"
PARTS = "rounds", "prompts", "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTimes:
    """Where an engine's time went; None is what it does not report.

    `rounds` counts rounds of all requests together, `rounds_seconds` and `prompts_seconds` the
    waiting for them, `host_seconds` the rest. `first_token` has percentiles of requests alone.
    """

    seconds: float
    tokens: int
    rounds: int | None = None
    rounds_seconds: float | None = None
    prompts_seconds: float | None = None
    host_seconds: float | None = None
    first_token: dict[str, float] | None = None

    @property
    def tokens_per_second(self) -> float:
        """The speed of all requests together."""
        return self.tokens / self.seconds

    @property
    def round_ms(self) -> float | None:
        """The time from a round's launch until its tokens are read."""
        return per(self.rounds_seconds, self.rounds, 1e3)

    @property
    def host_ms(self) -> float | None:
        """The time between forwards, per round."""
        return per(self.host_seconds, self.rounds, 1e3)

    @property
    def host_share(self) -> float | None:
        """The host's share of a round and the time until the next."""
        if self.host_ms is None or self.round_ms is None:
            return None
        return self.host_ms / (self.host_ms + self.round_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTimes:
    """A server under `clients` clients, each with one request at a time.

    Percentiles in seconds: until the `first_token`, `per_token` after it (a request's mean), and
    `between` two events with text. `alone` is the engine with as many requests in parallel, or as
    many as it has caches. `different` counts texts that are not those of before.
    """

    clients: int
    served: EngineTimes
    alone: EngineTimes | None
    first_token: dict[str, float]
    per_token: dict[str, float]
    between: dict[str, float]
    different: int

    def to_json(self) -> dict[str, Any]:
        """Return all of it, with ratios."""
        names = "tokens_per_second", "round_ms", "host_ms", "host_share"
        ratios = {
            f"{prefix}_{name}": getattr(times, name)
            for prefix, times in (("served", self.served), ("alone", self.alone))
            if times is not None
            for name in names
        }
        return {**asdict(self), **ratios}


def per(value: float | None, count: int | None, unit: float = 1.0) -> float | None:
    """Divide; None where either is not known."""
    return None if value is None or not count else unit * value / count


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return the median, the values that 5 % and 1 % exceed, and the largest."""
    listed = list(values)
    if not listed:
        return {}
    cuts = quantiles(listed * 2 if len(listed) == 1 else listed, n=100)
    return {"median": cuts[49], "95 %": cuts[94], "99 %": cuts[98], "most": max(listed)}


def engine_alone(
    artifact: Path, batch_sizes: Sequence[int], load: "Load", known_texts: "KnownTexts"
) -> dict[int, EngineTimes]:
    """Answer the load without a server, with `batch_sizes` requests in parallel.

    Raises EagleError where a text is not what it was before.
    """
    times: dict[int, EngineTimes] = {}
    short = load.parameters | {"max_new_tokens": WARM_UP_TOKENS}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for size in batch_sizes:
            prompts = load.prompts_of(size)
            pool.submit(answer_alone, artifact, prompts[:size], size, short).result()
            answers = pool.submit(answer_alone, artifact, prompts, size, load.parameters).result()
            if different := known_texts.count_different(dict(enumerate(answers.texts))):
                raise EagleError(f"{different} texts of {size} in parallel are not those of before")
            times[size] = EngineTimes(
                seconds=answers.seconds,
                tokens=answers.tokens,
                rounds=answers.rounds,
                rounds_seconds=answers.rounds_seconds,
                prompts_seconds=answers.prompts_seconds,
                host_seconds=answers.seconds - answers.rounds_seconds - answers.prompts_seconds,
                first_token=percentiles(answers.first_token),
            )
    return times


def measure_server(
    url: str, clients: int, alone: EngineTimes | None, load: "Load", known_texts: "KnownTexts"
) -> ServerTimes:
    """Send all clients' requests at once, after a short request of each as a warm-up."""
    parameters = load.parameters
    options = {
        "temperature": parameters["temperature"],
        "max_tokens": parameters["max_new_tokens"],
        "extra_body": {"speculate": parameters["speculate"]},
    }
    short, requests = options | {"max_tokens": WARM_UP_TOKENS}, load.by_client(clients)
    processes = min(clients, max(1, (os.cpu_count() or 1) // 2))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        send_all(pool, processes, url, [client[:1] for client in requests], short)
        metrics_before = read_metrics(url)
        answers = send_all(pool, processes, url, requests, options)
        after = read_metrics(url)
    spent = {name: value - metrics_before.get(name, 0.0) for name, value in after.items()}
    tokens = sum(answer["tokens"] for answer in answers)
    return ServerTimes(
        clients=clients,
        served=engine_times(spent, wall_seconds(answers), tokens),
        alone=alone,
        different=known_texts.count_different({a["number"]: a["text"] for a in answers}),
        **waiting_times(answers),
    )


def send_all(
    pool: ProcessPoolExecutor,
    processes: int,
    url: str,
    requests: Sequence[Sequence[dict[str, Any]]],
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    """Send each client's requests, and return all answers."""
    parts = [requests[i::processes] for i in range(processes)]
    futures = [pool.submit(send_requests, url, part, options) for part in parts]
    return [answer for future in futures for answer in future.result()]


def engine_times(spent: dict[str, float], seconds: float, tokens: int) -> EngineTimes:
    """Return what a server's metrics say of its engine; one on Ray reports nothing."""
    if ENGINE + '{in="rounds"}' not in spent:
        return EngineTimes(seconds=seconds, tokens=tokens)
    rounds, prompts, host = (spent[f'{ENGINE}{{in="{part}"}}'] for part in PARTS)
    return EngineTimes(
        seconds=seconds,
        tokens=tokens,
        rounds=int(spent["eagle_engine_rounds_total"]),
        rounds_seconds=rounds,
        prompts_seconds=prompts,
        host_seconds=host,
    )


def waiting_times(answers: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return percentiles of what clients waited for, named as in `ServerTimes`."""
    texts = [answer for answer in answers if answer["times"]]
    longer = [answer for answer in texts if answer["tokens"] > 1]
    return {
        "first_token": percentiles(a["times"][0] - a["started"] for a in texts),
        "per_token": percentiles(
            (a["times"][-1] - a["times"][0]) / (a["tokens"] - 1) for a in longer
        ),
        "between": percentiles(
            later - earlier for a in texts for earlier, later in pairwise(a["times"])
        ),
    }


def wall_seconds(answers: Sequence[dict[str, Any]]) -> float:
    """Return the seconds from the first request to the end of the last answer."""
    first = min((answer["started"] for answer in answers), default=math.nan)
    return max((answer["ended"] for answer in answers), default=math.nan) - first


def read_metrics(url: str) -> dict[str, float]:
    """Return the values of /metrics by name and labels."""
    lines = httpx.get(f"{url}/metrics", timeout=METRICS_TIMEOUT).text.splitlines()
    values = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in values}
