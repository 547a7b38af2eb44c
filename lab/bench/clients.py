"""`eagle-bench --part clients`: what clients get that send their prompts at the same time.

The engine alone, without HTTP: random prompts of one length, each a client's only request.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from msgspec import structs
from rich.table import Table

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec, check_range, milliseconds, table_of
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.engine import Engine, Failed, Limits, Request, Tokens


class ClientsSpec(BenchSpec, kw_only=True, frozen=True):
    """What to measure."""

    clients: Annotated[
        tuple[int, ...], Option("Clients at the same time.", metavar="N,...", commas=True)
    ] = (1, 2, 4, 8, 16, 32, 64, 128)
    prompt_tokens: Annotated[int, Option("Tokens of a prompt.", least=1)] = 1024
    max_new_tokens: Annotated[int, Option("Tokens of an answer.", least=2)] = 128
    chain_len: Annotated[int, Option("Drafts per round.", least=0)] = 0
    prompt_share: Annotated[
        float | None, Option("Share of time for prompts while others run.", metavar="SHARE")
    ] = None

    def open(self) -> Runner:
        """Open the artifact. Raises SettingError for lengths that it does not reach."""
        share = {} if self.prompt_share is None else {"prompt_share": self.prompt_share}
        runner = self.load(reuse=False, **share)
        constants = runner.constants
        length = self.prompt_tokens + self.max_new_tokens
        if length > constants.max_seq_len:
            raise SettingError(
                f"--prompt-tokens {self.prompt_tokens} and --max-new-tokens {self.max_new_tokens}: "
                f"this artifact takes {constants.max_seq_len} together"
            )
        check_range("--chain-len", filter(None, [self.chain_len]), constants.tail - 1)
        return runner

    def request(self, vocab_size: int, seed: int) -> Request:
        """Return a request for random tokens, which ends by its length alone."""
        draw = random.Random(seed)
        return Request(
            prompt=tuple(draw.randrange(vocab_size) for _ in range(self.prompt_tokens)),
            limits=Limits(max_new_tokens=self.max_new_tokens, stop_ids=frozenset()),
            chain_len=self.chain_len,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientTimes:
    """What so many `clients` get; `most_running` of them decode at the same time.

    `tokens_per_second` are all tokens from the first request to the last token;
    `full_tokens_per_second` those of the rounds with `most_running` requests. Medians are of
    clients (first tokens) and of tokens (the time between two).
    """

    clients: int
    most_running: int
    preemptions: int
    tokens_per_second: float
    full_tokens_per_second: float
    first_token_s: float
    last_first_token_s: float
    between_ms: float


@dataclass(slots=True)
class Rounds:
    """Tokens and seconds of rounds."""

    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Burst:
    """Requests that were all added at `started`, and when each of their tokens came."""

    engine: Engine
    started: float
    times: dict[int, list[float]]
    rounds: dict[int, Rounds] = field(default_factory=lambda: defaultdict(Rounds))
    """By the number of requests in a round."""

    def step(self) -> None:
        """Run a step of the engine. Raises EagleError if a request fails."""
        before, began = self.engine.launches.rounds, time.perf_counter()
        events, now = self.engine.step(), time.perf_counter()
        for failed in (event for event in events if isinstance(event, Failed)):
            raise EagleError(failed.error)
        runs = [event for event in events if isinstance(event, Tokens)]
        for run in runs:
            self.times[run.request] += [now] * len(run.tokens)
        if self.engine.launches.rounds > before:
            round_ = self.rounds[len(runs)]
            round_.tokens += sum(len(run.tokens) for run in runs)
            round_.seconds += now - began

    def result(self, preemptions: int) -> ClientTimes:
        """Return what the clients got."""
        times = self.times.values()
        first = [tokens[0] - self.started for tokens in times]
        most = max(self.rounds)
        full = self.rounds[most]
        ended = max(tokens[-1] for tokens in times)
        gaps = [after - before for tokens in times for before, after in pairwise(tokens)]
        return ClientTimes(
            clients=len(times),
            most_running=most,
            preemptions=preemptions,
            tokens_per_second=sum(map(len, times)) / (ended - self.started),
            full_tokens_per_second=full.tokens / full.seconds,
            first_token_s=statistics.median(first),
            last_first_token_s=max(first),
            between_ms=1e3 * statistics.median(gaps),
        )


@spec_command(ClientsSpec)
def main(spec: ClientsSpec) -> None:
    """Time bursts of clients of ARTIFACT."""
    runner = spec.open()
    lines = list(measure(runner, spec))
    results: dict[str, Any] = {"lines": [asdict(line) for line in lines]}
    spec.show(f"clients of {spec.name}", results, clients_table(lines, spec))


def measure(runner: Runner, spec: ClientsSpec) -> Iterator[ClientTimes]:
    """Yield what each number of clients gets, after a burst that does not count."""
    progress = Progress()
    with progress.stage("warm-up"):
        runner.warm_up(None, spec.chain_len or None, spec.chain_len > 0)
        burst(runner, structs.replace(spec, max_new_tokens=2), max(spec.clients))
    for clients in spec.clients:
        with progress.stage(f"{clients} clients"):
            yield burst(runner, spec, clients)


def burst(runner: Runner, spec: ClientsSpec, clients: int) -> ClientTimes:
    """Serve clients that come at the same time."""
    engine, vocab_size = runner.engine, runner.constants.vocab_size
    requests = [spec.request(vocab_size, seed) for seed in range(clients)]
    preemptions, started = engine.launches.preemptions, time.perf_counter()
    served = Burst(engine, started, {engine.add(request): [] for request in requests})
    while engine.busy:
        served.step()
    return served.result(engine.launches.preemptions - preemptions)


def clients_table(lines: list[ClientTimes], spec: ClientsSpec) -> Table:
    """Return a line for each number of clients."""
    table = table_of(
        "clients", "at the\nsame time", "ran\nagain", "tokens/s\nof all", "tokens/s of\nmost",
        "first token s\nmedian", "first token s\nof the last", "between\ntokens ms",
        title=f"{spec.prompt_tokens:,} tokens in, {spec.max_new_tokens} out, K = {spec.chain_len}",
    )  # fmt: skip
    for line in lines:
        table.add_row(
            str(line.clients),
            str(line.most_running),
            str(line.preemptions),
            f"{line.tokens_per_second:,.0f}",
            f"{line.full_tokens_per_second:,.0f}",
            f"{line.first_token_s:.2f}",
            f"{line.last_first_token_s:.2f}",
            milliseconds(line.between_ms),
        )
    return table
