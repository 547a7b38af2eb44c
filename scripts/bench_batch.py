"""What are several texts side by side worth, with and without drafts? Against one text.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    python scripts/bench_batch.py gemma4-tiny-xnnpack --contexts 128,512

Whole rounds over random text, each begun again behind the same context, in turn, so that a drift of
the machine meets all of them. What drafts are worth depends on the text, so speeds are projected
for tokens a round and text (tau) as given.
"""

import itertools
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.common.progress import Progress
from eagle_aot.lab.bench.parts import WholeRound
from eagle_aot.lab.bench.prefill import fill_all
from eagle_aot.lab.bench.report import milliseconds, table_of
from eagle_aot.lab.bench.samples import RoundSeries
from eagle_aot.lab.bench.settings import check_range, numbers
from eagle_aot.lab.bench.timing import Clock, clock_for
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import commit_option, drafter_option, json_option, no_cuda_graph_option
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound

STEPS = 50  # of the engine, of whose times the median counts
ENDLESS = 10**9  # tokens: between two prompts come as many rounds as take their time
REPORT_WIDTH = 140


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A round of `batch_size` texts with `chain_len` drafts each behind `context` tokens.

    `round_ms` until the host has its tokens, of which `device_ms` is the device's span, None where
    that is the host; `launch_ms` until all is launched; `engine_ms` is what the engine does with
    the tokens behind it. `of_one` is how many times the tokens of one text with as many drafts it
    gives, at the same tau; `break_even_tau` makes it as fast as plain rounds of as many texts.
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
        """From round to round."""
        return self.round_ms + self.engine_ms

    @property
    def host_share(self) -> float:
        """Of a step, outside the device's span."""
        device = self.round_ms if self.device_ms is None else self.device_ms
        return 1 - device / self.step_ms

    def tokens_per_second(self, tau: float) -> float | None:
        """Of all texts, at so many tokens a round and text; None where a round cannot give them."""
        possible = tau <= self.chain_len + 1
        return 1e3 * self.batch_size * tau / self.step_ms if possible else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What to measure; one text and plain rounds are always among it."""

    batch_sizes: tuple[int, ...]
    chain_lens: tuple[int, ...]
    contexts: tuple[int, ...]
    taus: tuple[float, ...]
    repeats: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Texts and drafts of each."""
        return list(itertools.product(self.batch_sizes, self.chain_lens))

    def check(self, runner: Runner) -> None:
        """Raise SettingError for what the artifact does not reach."""
        constants = runner.constants
        check_range("--batch-sizes", self.batch_sizes, constants.max_batch_size)
        check_range("--chain-lens", self.chain_lens[1:], constants.tail - 1)
        check_range("--contexts", self.contexts, constants.max_seq_len - constants.tail)
        check_range("--tau", (int(tau) for tau in self.taus), constants.tail)


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--batch-sizes", default="1,2,4,8", show_default=True, help="Texts side by side.")
@click.option("--chain-lens", default="0,2,4,7", show_default=True, help="Drafts per round.")
@click.option("--contexts", default="1024,8192", show_default=True,
              help="Tokens in each text's caches.")  # fmt: skip
@click.option("--tau", default="1,2,3,4", show_default=True,
              help="Tokens per round and text to project speeds for.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=1), default=20, show_default=True,
              help="Samples per figure, of which the median counts.")  # fmt: skip
@drafter_option
@no_cuda_graph_option
@commit_option
@json_option
def main(
    artifact: Path,
    batch_sizes: str,
    chain_lens: str,
    contexts: str,
    tau: str,
    repeats: int,
    drafter: str | None,
    no_cuda_graph: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Time rounds of several texts of ARTIFACT against rounds of one."""
    settings = Settings(
        batch_sizes=tuple(sorted({1, *numbers("--batch-sizes", batch_sizes, int)})),
        chain_lens=tuple(sorted({0, *numbers("--chain-lens", chain_lens, int)})),
        contexts=numbers("--contexts", contexts, int),
        taus=numbers("--tau", tau, float),
        repeats=repeats,
    )
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    settings.check(runner)
    lines = list(measured(runner, settings))
    show(artifact, lines, settings.taus, commit, as_json)


def measured(runner: Runner, settings: Settings) -> Iterator[Line]:
    """All rounds behind one context after the other."""
    progress, clock = Progress(), clock_for(runner.executor.device)
    with progress.stage("record"):
        rounds = {shape: whole_round(runner, *shape) for shape in settings.shapes}
        engine = {shape: engine_ms(runner, *shape) for shape in settings.shapes}
    for context in settings.contexts:
        with progress.stage(f"prefill of {max(settings.batch_sizes)} x {context}"):
            fill_all(runner, range(max(settings.batch_sizes)), context)
        with progress.stage(f"rounds behind {context}"):
            series = sampled(clock, rounds, context, settings.repeats)
        yield from lines_of(context, series, engine)


def whole_round(runner: Runner, batch_size: int, chain_len: int) -> WholeRound:
    """Made and recorded. Raises SettingError where the texts have no room for so many drafts."""
    round_ = runner.round(chain_len, batch_size)
    if round_.chain_len < chain_len:
        raise SettingError(
            f"{batch_size} texts with {chain_len} drafts: a round of so many has rows for "
            f"{round_.chain_len} at most"
        )
    return WholeRound(round_, runner.constants.vocab_size, batch_size)


def engine_ms(runner: Runner, batch_size: int, chain_len: int) -> float:
    """What a step of the engine takes beside its round: whose turn it is, and each text's tokens,
    all drafts accepted, of a round that takes no time."""
    constants, drafter = runner.constants, runner.drafter
    running = BatchState(range(batch_size), constants.tail, runner.executor.device)
    round_ = Round(runner.target, drafter, chain_len, running)
    token = next(i for i in range(constants.vocab_size) if i not in constants.eos_ids)
    played = torch.tensor([[chain_len, *[token] * (chain_len + 1)]] * batch_size)
    round_.play = lambda: played
    engine = Engine(OneRound(round_))
    limits = Limits(room=ENDLESS, stop_ids=frozenset(constants.eos_ids))
    for _ in range(batch_size):
        engine.add(Request(prompt=(token,), limits=limits, chain_len=chain_len))
    while len(engine.running) < batch_size:
        engine.step()
    return 1e3 * statistics.median(seconds_of_step(engine) for _ in range(STEPS))


def seconds_of_step(engine: Engine) -> float:
    """By the host's clock."""
    started = time.perf_counter()
    engine.step()
    return time.perf_counter() - started


def sampled(
    clock: Clock, rounds: dict[tuple[int, int], WholeRound], context: int, repeats: int
) -> dict[tuple[int, int], RoundSeries]:
    """Samples of all rounds, taken in turn."""
    for round_ in rounds.values():
        round_.place(context)
    series = {shape: RoundSeries(clock, round_.timed) for shape, round_ in rounds.items()}
    for _ in range(repeats):
        for one in series.values():
            one.sample()
    return series


def lines_of(
    context: int,
    series: dict[tuple[int, int], RoundSeries],
    engine: dict[tuple[int, int], float],
) -> Iterator[Line]:
    """A line for each shape."""
    steps = {shape: one.wall.ms + engine[shape] for shape, one in series.items()}
    for (batch_size, chain_len), one in series.items():
        step = steps[batch_size, chain_len]
        yield Line(
            context=context,
            batch_size=batch_size,
            chain_len=chain_len,
            round_ms=one.wall.ms,
            device_ms=None if one.host_ms is None else one.wall.ms - one.host_ms,
            launch_ms=one.launch_ms,
            engine_ms=engine[batch_size, chain_len],
            of_one=batch_size * steps[1, chain_len] / step,
            break_even_tau=step / steps[batch_size, 0],
        )


def show(
    artifact: Path, lines: list[Line], taus: tuple[float, ...], commit: str | None, as_json: bool
) -> None:
    """One JSON object, or a table for each context."""
    head = header(f"several texts of {artifact.name}", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [to_json(line, taus) for line in lines]}))
        return
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), sep="\n")
    for context, found in itertools.groupby(lines, lambda line: line.context):
        console.print(f"\nBehind {context:,} tokens each", table(list(found), taus), sep="\n")


def to_json(line: Line, taus: tuple[float, ...]) -> dict[str, Any]:
    """Times are milliseconds; null is what cannot be known here, or cannot be."""
    speeds = [{"tau": tau, "tokens_per_second": line.tokens_per_second(tau)} for tau in taus]
    return {**asdict(line), "host_share": line.host_share, "projections": speeds}


def table(lines: list[Line], taus: tuple[float, ...]) -> Table:
    """Behind one context."""
    shown = table_of(
        "texts", "K", "round ms", "device", "launch", "engine", "host\nshare", "x one\ntext",
        "break-\neven tau", *(f"tokens/s\nof all at\ntau {tau:g}" for tau in taus),
    )  # fmt: skip
    for line in lines:
        speeds = map(line.tokens_per_second, taus)
        shown.add_row(
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
    return shown


if __name__ == "__main__":
    main()
