"""`eagle-bench --part clients`: what clients get that send their prompts at the same time.

The engine alone, without HTTP: random prompts of one length, each a client's only request.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Self

from msgspec import structs
from rich.table import Table

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.scripted import ScriptedDrafts
from eagle_aot.lab.bench.spec import (
    BenchSpec,
    check_range,
    check_taus,
    milliseconds,
    table_of,
)
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.engine import Engine, Failed, Limits, Request, Tokens


class ClientsSpec(BenchSpec, kw_only=True, frozen=True):
    """What to measure."""

    clients: Annotated[
        tuple[int, ...], Option("Clients at the same time.", metavar="N,...", commas=True)
    ] = (1, 2, 4, 8, 16, 32, 64, 128)
    prompt_tokens: Annotated[
        int | None, Option("Tokens of a prompt; default: 1024, or half of the context.", least=1)
    ] = None
    max_new_tokens: Annotated[int, Option("Tokens of an answer.", least=2)] = 128
    chain_len: Annotated[int, Option("Drafts per round.", least=0)] = 0
    taus: Annotated[
        tuple[float, ...],
        Option("Tokens per round that drafts give; default: as many as are right.",
               metavar="X,...", flag="--tau", commas=True),
    ] = ()  # fmt: skip
    prompt_share: Annotated[
        float | None, Option("Share of time for prompts while others run.", metavar="SHARE")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.clients) < 1:
            raise SettingError(f"--clients {min(self.clients)}: must be at least 1")
        check_taus(self.taus)
        for tau in self.taus:
            if tau > self.chain_len + 1:
                raise SettingError(
                    f"--tau {tau}: a round of --chain-len {self.chain_len} gives "
                    f"{self.chain_len + 1} at most"
                )

    def open(self) -> Runner:
        """Open the artifact."""
        share = {} if self.prompt_share is None else {"prompt_share": self.prompt_share}
        return self.load(reuse=False, **share)

    def fitted(self, constants: Constants) -> Self:
        """Fill in what is not given. Raises SettingError for what an artifact does not reach."""
        limit = constants.max_seq_len
        prompt_tokens = self.prompt_tokens or min(1024, limit // 2)
        if prompt_tokens + self.max_new_tokens > limit:
            raise SettingError(
                f"--prompt-tokens {prompt_tokens} and --max-new-tokens {self.max_new_tokens}: "
                f"this artifact takes {limit} together"
            )
        check_range("--chain-len", filter(None, [self.chain_len]), constants.tail - 1)
        return structs.replace(self, prompt_tokens=prompt_tokens)

    def request(self, vocab_size: int, seed: int, chain_len: int) -> Request:
        """Return a request for random tokens, which ends by its length alone."""
        assert self.prompt_tokens is not None, "fitted"
        draw = random.Random(seed)
        return Request(
            prompt=tuple(draw.randrange(vocab_size) for _ in range(self.prompt_tokens)),
            limits=Limits(max_new_tokens=self.max_new_tokens, stop_ids=frozenset()),
            chain_len=chain_len,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientTimes:
    """What so many `clients` get; `most_running` of them decode at the same time.

    Rounds have `chain_len` drafts and give `tau` tokens to a client, on average.
    `tokens_per_second` are all tokens from the first request to the last token;
    `full_tokens_per_second` those of the rounds with `most_running` requests. Medians are of
    clients; the time between two tokens is a client's mean.
    """

    clients: int
    chain_len: int
    tau: float
    most_running: int
    preemptions: int
    tokens_per_second: float
    full_tokens_per_second: float
    first_token_s: float
    last_first_token_s: float
    between_ms: float


@dataclass(slots=True)
class Rounds:
    """Tokens and seconds of rounds; `shares` counts a round once for each of its requests."""

    tokens: int = 0
    shares: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Burst:
    """Requests that were all added at `started`, by their numbers, and when their tokens came."""

    engine: Engine
    requests: dict[int, Request]
    script: ScriptedDrafts | None
    started: float = field(default_factory=time.perf_counter)
    preemptions: int = 0
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    rounds: dict[int, Rounds] = field(default_factory=lambda: defaultdict(Rounds))
    """By the number of requests in a round."""

    def serve(self) -> None:
        """Run the engine until all have ended. Raises EagleError if a request fails."""
        before = self.engine.launches.preemptions
        while self.engine.busy:
            self.step()
        self.preemptions = self.engine.launches.preemptions - before

    def step(self) -> None:
        """Run a step of the engine. Raises EagleError if a request fails."""
        if self.script is not None:
            self.script.place(self.engine, min(self.requests))
        before, began = self.engine.launches.rounds, time.perf_counter()
        events, now = self.engine.step(), time.perf_counter()
        for failed in (event for event in events if isinstance(event, Failed)):
            raise EagleError(failed.error)
        runs = [event for event in events if isinstance(event, Tokens)]
        for run in runs:
            self.times[run.request] += [now] * len(run.tokens)
            self.tokens[run.request] += run.tokens
        if self.engine.launches.rounds > before:
            round_ = self.rounds[len(runs)]
            round_.tokens += sum(len(run.tokens) for run in runs)
            round_.shares += len(runs)
            round_.seconds += now - began

    def texts(self) -> list[list[int]]:
        """Return prompts and answers, in the order of the requests."""
        return [[*request.prompt, *self.tokens[n]] for n, request in self.requests.items()]

    def result(self, chain_len: int) -> ClientTimes:
        """Return what the clients got."""
        times, rounds = self.times.values(), self.rounds.values()
        first = [tokens[0] - self.started for tokens in times]
        most = max(self.rounds)
        full = self.rounds[most]
        ended = max(tokens[-1] for tokens in times)
        between = [(tokens[-1] - tokens[0]) / (len(tokens) - 1) for tokens in times]
        return ClientTimes(
            clients=len(times),
            chain_len=chain_len,
            tau=sum(r.tokens for r in rounds) / sum(r.shares for r in rounds),
            most_running=most,
            preemptions=self.preemptions,
            tokens_per_second=sum(map(len, times)) / (ended - self.started),
            full_tokens_per_second=full.tokens / full.seconds,
            first_token_s=statistics.median(first),
            last_first_token_s=max(first),
            between_ms=1e3 * statistics.median(between),
        )


@spec_command(ClientsSpec)
def main(spec: ClientsSpec) -> None:
    """Time bursts of clients of ARTIFACT.

    With --tau each number of clients decodes plainly first. Its rounds with drafts then draft what
    is known to follow, as many of it as a round is to give.
    """
    runner = spec.open()
    spec = spec.fitted(runner.constants)
    lines = list(measure(runner, spec))
    results: dict[str, Any] = {"lines": [asdict(line) for line in lines]}
    spec.show(f"clients of {spec.name}", results, clients_table(lines, spec))


def measure(runner: Runner, spec: ClientsSpec) -> Iterator[ClientTimes]:
    """Yield what each number of clients gets, after a burst that does not count."""
    progress, fixed = Progress(), 0 if spec.taus else spec.chain_len
    script = ScriptedDrafts(runner) if spec.taus else None
    with progress.stage("warm-up"):
        for chain_len in {fixed, spec.chain_len}:
            runner.warm_up(None, chain_len or None, chain_len > 0)
        burst(runner, structs.replace(spec, max_new_tokens=2), max(spec.clients), fixed)
    for clients in spec.clients:
        with progress.stage(f"{clients} clients"):
            served = burst(runner, spec, clients, fixed)
            yield served.result(fixed)
            texts = served.texts()
            for tau in spec.taus:
                assert script is not None, "there are taus"
                script.start(tau, texts)
                drafted = burst(runner, spec, clients, spec.chain_len, script)
                if drafted.texts() != texts:
                    raise EagleError(f"{clients} clients: drafts have changed a text")
                yield drafted.result(spec.chain_len)


def burst(
    runner: Runner,
    spec: ClientsSpec,
    clients: int,
    chain_len: int,
    script: ScriptedDrafts | None = None,
) -> Burst:
    """Serve clients that come at the same time. Raises EagleError if a request fails."""
    engine, vocab_size = runner.engine, runner.constants.vocab_size
    requests = [spec.request(vocab_size, seed, chain_len) for seed in range(clients)]
    served = Burst(engine, {engine.add(request): request for request in requests}, script)
    served.serve()
    return served


def clients_table(lines: list[ClientTimes], spec: ClientsSpec) -> Table:
    """Return a line for each number of clients."""
    table = table_of(
        "clients", "K", "tau", "at once", "ran\nagain", "tokens/s\nof all", "tokens/s of\nmost",
        "first token s\nmedian", "first token s\nof the last", "between\ntokens ms",
        title=f"{spec.prompt_tokens:,} tokens in, {spec.max_new_tokens} out",
    )  # fmt: skip
    for line in lines:
        table.add_row(
            str(line.clients),
            str(line.chain_len),
            f"{line.tau:.2f}",
            str(line.most_running),
            str(line.preemptions),
            f"{line.tokens_per_second:,.0f}",
            f"{line.full_tokens_per_second:,.0f}",
            f"{line.first_token_s:.2f}",
            f"{line.last_first_token_s:.2f}",
            milliseconds(line.between_ms),
        )
    return table
