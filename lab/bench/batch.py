"""`eagle-bench --part batch`: what rounds of several requests gain over rounds of one.

Whole rounds over random text, each restarted at the same context, in turn, so that a drift of the
machine affects all of them. Accepted drafts depend on the text, so speeds are projected for given
tokens per round and request (tau).
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

import torch
from msgspec import structs
from rich.table import Table

from eagle_aot.artifact import Constants
from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.parts import WholeRound
from eagle_aot.lab.bench.prefill import fill_all
from eagle_aot.lab.bench.samples import RoundSeries
from eagle_aot.lab.bench.spec import BenchSpec, check_range, check_taus, milliseconds, table_of
from eagle_aot.lab.bench.timing import Clock, clock_for
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound

STEPS = 50  # of the engine, whose times' median counts
ENDLESS = 10**9  # tokens: between two prompts run as many rounds as take the same time
RoundShape = tuple[int, int]
"""A batch size and a chain length."""


class BatchBenchSpec(BenchSpec, kw_only=True, frozen=True):
    """What to measure. One request and plain rounds are always measured as well."""

    batch_sizes: Annotated[
        tuple[int, ...], Option("Requests in a round.", metavar="B,...", commas=True)
    ] = (1, 2, 4, 8)
    chain_lens: Annotated[
        tuple[int, ...], Option("Drafts per round.", metavar="K,...", commas=True)
    ] = (0, 2, 4, 7)
    contexts: Annotated[
        tuple[int, ...],
        Option("Tokens in each request's caches. Default: 1024 and 8192, those that fit, or half "
               "of the context.", metavar="N,...", commas=True),
    ] = ()  # fmt: skip
    taus: Annotated[
        tuple[float, ...],
        Option("Tokens per round and request to project speeds for.", metavar="X,...",
               flag="--tau", commas=True),
    ] = (1.0, 2.0, 3.0, 4.0)  # fmt: skip
    repeats: Annotated[int, Option("Samples per figure, whose median counts.", least=1)] = 20

    @property
    def shapes(self) -> list[RoundShape]:
        """All rounds to time."""
        sizes, chains = sorted({1, *self.batch_sizes}), sorted({0, *self.chain_lens})
        return list(itertools.product(sizes, chains))

    def fitted(self, constants: Constants) -> Self:
        """Fill in contexts. Raises SettingError for lengths that the artifact does not reach."""
        longest = constants.max_seq_len - constants.tail
        check_range("--batch-sizes", self.batch_sizes, constants.max_batch_size)
        check_range("--chain-lens", filter(None, self.chain_lens), constants.tail - 1)
        check_range("--contexts", self.contexts, longest)
        check_taus(self.taus)
        fitting = tuple(n for n in (1024, 8192) if n <= longest) or (longest // 2,)
        return structs.replace(self, contexts=self.contexts or fitting)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTimes:
    """A round of `batch_size` requests with `chain_len` drafts each, at `context` tokens.

    `round_ms` ends when the host has its tokens; `device_ms` is the device's span in it, None where
    that is the host; `launch_ms` ends when everything is launched. `engine_ms` is the engine's time
    between rounds. `of_one` is how many times the tokens of one request with as many drafts it
    gives, at the same tau. At `break_even_tau` it is as fast as plain rounds of as many requests.
    """

    context: int
    batch_size: int
    chain_len: int
    round_ms: float
    device_ms: float | None
    launch_ms: float | None
    engine_ms: float
    of_one: float
    break_even_tau: float

    @property
    def step_ms(self) -> float:
        """The time from round to round."""
        return self.round_ms + self.engine_ms

    @property
    def host_share(self) -> float:
        """The share of a step outside the device's span."""
        device = self.round_ms if self.device_ms is None else self.device_ms
        return 1 - device / self.step_ms

    def tokens_per_second(self, tau: float) -> float | None:
        """Return the tokens of all requests; None for a tau that the round cannot give."""
        possible = tau <= self.chain_len + 1
        return 1e3 * self.batch_size * tau / self.step_ms if possible else None

    def to_json(self, taus: tuple[float, ...]) -> dict[str, Any]:
        """Return all of it; times are milliseconds, null is what is not known or not possible."""
        speeds = [{"tau": tau, "tokens_per_second": self.tokens_per_second(tau)} for tau in taus]
        return {**asdict(self), "host_share": self.host_share, "projections": speeds}


@spec_command(BatchBenchSpec)
def main(spec: BatchBenchSpec) -> None:
    """Time rounds of several requests of ARTIFACT and rounds of one."""
    runner = spec.load()
    spec = spec.fitted(runner.constants)
    lines = list(measure(runner, spec))
    tables = [
        batch_table([line for line in lines if line.context == context], spec.taus)
        for context in spec.contexts
    ]
    results = {"lines": [line.to_json(spec.taus) for line in lines]}
    spec.show(f"batches of {spec.name}", results, *tables)


def measure(runner: Runner, spec: BatchBenchSpec) -> Iterator[BatchTimes]:
    """Time all rounds at one context after the other, but for those with too few rows."""
    progress, clock = Progress(), clock_for(runner.executor.device)
    largest = max(batch_size for batch_size, _ in spec.shapes)
    with progress.stage("record"):
        made = {shape: whole_round(runner, *shape) for shape in spec.shapes}
        rounds = {shape: round_ for shape, round_ in made.items() if round_ is not None}
        engine_ms = {shape: time_engine(runner, *shape) for shape in rounds}
    for context in spec.contexts:
        with progress.stage(f"prefill of {largest} x {context}"):
            fill_all(runner, range(largest), context)
        with progress.stage(f"rounds at {context}"):
            series = sample_in_turn(clock, rounds, context, spec.repeats)
        yield from times_of(context, series, engine_ms)


def whole_round(runner: Runner, batch_size: int, chain_len: int) -> WholeRound | None:
    """Make and record a round, None where a step has too few rows for the drafts."""
    round_ = runner.round(chain_len, batch_size)
    if round_.chain_len < chain_len:
        return None
    return WholeRound(round_, runner.constants.vocab_size, batch_size)


def time_engine(runner: Runner, batch_size: int, chain_len: int) -> float:
    """Return the milliseconds of an engine's step whose round takes no time and accepts all."""
    constants = runner.constants
    state = BatchState(range(batch_size), constants.tail, runner.executor.device)
    round_ = Round(runner.target, runner.drafter, chain_len, state)
    token = next(i for i in range(constants.vocab_size) if i not in constants.eos_ids)
    output = torch.tensor([[chain_len, *[token] * (chain_len + 1)]] * batch_size)
    round_.run = lambda: output
    engine = Engine(OneRound(round_))
    limits = Limits(max_new_tokens=ENDLESS, stop_ids=frozenset(constants.eos_ids))
    for _ in range(batch_size):
        engine.add(Request(prompt=(token,), limits=limits, chain_len=chain_len))
    while len(engine.running) < batch_size:
        engine.step()
    return 1e3 * statistics.median(time_step(engine) for _ in range(STEPS))


def time_step(engine: Engine) -> float:
    """Return a step's seconds by the host's clock."""
    started = time.perf_counter()
    engine.step()
    return time.perf_counter() - started


def sample_in_turn(
    clock: Clock, rounds: Mapping[RoundShape, WholeRound], context: int, repeats: int
) -> dict[RoundShape, RoundSeries]:
    """Take samples of all rounds in turn."""
    for round_ in rounds.values():
        round_.place(context)
    series = {shape: RoundSeries(clock, round_.timed) for shape, round_ in rounds.items()}
    for _ in range(repeats):
        for samples in series.values():
            samples.sample()
    return series


def times_of(
    context: int, series: Mapping[RoundShape, RoundSeries], engine_ms: Mapping[RoundShape, float]
) -> Iterator[BatchTimes]:
    """Yield the times of each shape."""
    step_ms = {shape: samples.wall.ms + engine_ms[shape] for shape, samples in series.items()}
    for (batch_size, chain_len), samples in series.items():
        wall_ms, host_ms = samples.wall.ms, samples.host_ms
        step = step_ms[batch_size, chain_len]
        yield BatchTimes(
            context=context,
            batch_size=batch_size,
            chain_len=chain_len,
            round_ms=wall_ms,
            device_ms=None if host_ms is None else wall_ms - host_ms,
            launch_ms=samples.launch_ms,
            engine_ms=engine_ms[batch_size, chain_len],
            of_one=batch_size * step_ms[1, chain_len] / step,
            break_even_tau=step / step_ms[batch_size, 0],
        )


def batch_table(lines: list[BatchTimes], taus: tuple[float, ...]) -> Table:
    """Return the times at one context."""
    table = table_of(
        "requests", "K", "round ms", "device", "launch", "engine", "host\nshare", "x one\nrequest",
        "break-\neven tau", *(f"tokens/s\nof all at\ntau {tau:g}" for tau in taus),
        title=f"{lines[0].context:,} tokens of context each",
    )  # fmt: skip
    for line in lines:
        speeds = map(line.tokens_per_second, taus)
        table.add_row(
            str(line.batch_size),
            str(line.chain_len),
            milliseconds(line.round_ms),
            milliseconds(line.device_ms),
            milliseconds(line.launch_ms),
            milliseconds(line.engine_ms),
            f"{line.host_share:.1%}",
            f"{line.of_one:.2f}",
            f"{line.break_even_tau:.2f}",
            *("-" if speed is None else f"{speed:,.0f}" for speed in speeds),
        )
    return table
