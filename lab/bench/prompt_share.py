"""`eagle-bench --part prompt-share`: a long prompt and running requests, in parallel.

A prompt's chunks run between the requests' rounds, and take --prompt-share of the time: with a
half, each request takes twice its time on average, for as many steps as the prompt has chunks.
"""

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import click
import torch

from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec, check_range, table_of
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.engine import PROMPT_SHARE

SHORT_PROMPT = 65  # tokens of the running requests' prompts
STEPS_ALONE = 40
Step = tuple[float, set[int]]
"""An engine's step: milliseconds, and the requests that it had events of."""


class PromptShareSpec(BenchSpec, kw_only=True, frozen=True):
    """The prompt and the requests that run in parallel."""

    batch_sizes: Annotated[
        tuple[int, ...], Option("Running requests.", metavar="B,...", commas=True)
    ] = (1, 4)
    prompt: Annotated[int, Option("Tokens of the prompt.", least=1)] = 8192
    chain_len: Annotated[int, Option("Drafts per round.", least=0)] = 4
    prompt_share: Annotated[float, Option("Share of the time for prompts.", least=0, most=1)] = (
        PROMPT_SHARE
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTimes:
    """Milliseconds of `batch_size` requests and of a prompt, alone and in parallel.

    A request's times are from one of its steps with tokens to the next.
    """

    batch_size: int
    alone_ms: float
    mean_ms: float
    median_ms: float
    longest_ms: float
    prompt_alone_ms: float
    prompt_ms: float


@click.argument("artifact", type=click.Path(path_type=Path))
@spec_command(PromptShareSpec)
def main(spec: PromptShareSpec) -> None:
    """Time requests of ARTIFACT while a long prompt is computed."""
    runner = spec.load()
    check_range("--batch-sizes", spec.batch_sizes, runner.constants.max_batch_size - 1)
    check_range("--prompt", [spec.prompt], runner.constants.max_seq_len - runner.constants.tail)
    runner.warm_up(max(spec.batch_sizes), spec.chain_len)
    bench = SharedEngine(runner, spec.prompt_share, spec.chain_len)
    lines = [bench.measure(size, spec.prompt) for size in spec.batch_sizes]
    table = table_of("requests", "alone: ms", "in parallel, mean", "median", "longest",
                     "prompt alone: ms", "in parallel")  # fmt: skip
    for line in lines:
        table.add_row(
            str(line.batch_size),
            f"{line.alone_ms:.2f}",
            *(f"{ms:.2f} ({ms / line.alone_ms:.2f}x)" for ms in (line.mean_ms, line.median_ms)),
            f"{line.longest_ms:.1f}",
            f"{line.prompt_alone_ms:,.1f}",
            f"{line.prompt_ms:,.1f} ({line.prompt_ms / line.prompt_alone_ms:.2f}x)",
        )
    subject = f"requests of {spec.artifact.name} during a prompt of {spec.prompt:,} tokens"
    spec.show(subject, {"lines": [asdict(line) for line in lines]}, table)


class SharedEngine:
    """An engine whose requests run until they are cancelled."""

    def __init__(self, runner: Runner, prompt_share: float, chain_len: int) -> None:
        self._engine = Engine(runner.engine.schedule, prompt_share)
        self._chain_len = chain_len
        self._vocab_size = runner.constants.vocab_size
        self._max_seq_len = runner.constants.max_seq_len

    def measure(self, batch_size: int, prompt: int) -> SharedTimes:
        """Time the prompt alone, the requests alone, and both in parallel."""
        prompt_alone_ms = sum(ms for ms, _ in self._until_event(self._add(prompt, 1)))
        running = {self._add(SHORT_PROMPT) for _ in range(batch_size)}
        while len(self._engine.running) < batch_size:
            self._engine.step()
        alone = [self._step()[0] for _ in range(STEPS_ALONE)]
        steps = list(self._until_event(self._add(prompt, 1)))
        intervals = list(intervals_of(steps, running))
        for number in running:
            self._engine.cancel(number)
        self._engine.step()
        return SharedTimes(
            batch_size=batch_size,
            alone_ms=statistics.median(alone),
            mean_ms=statistics.fmean(intervals),
            median_ms=statistics.median(intervals),
            longest_ms=max(intervals),
            prompt_alone_ms=prompt_alone_ms,
            prompt_ms=sum(ms for ms, _ in steps),
        )

    def _add(self, length: int, max_new_tokens: int | None = None) -> int:
        prompt = tuple(torch.randint(self._vocab_size, (length,)).tolist())
        room = max_new_tokens or self._max_seq_len - length
        limits = Limits(max_new_tokens=room, stop_ids=frozenset())
        return self._engine.add(Request(prompt=prompt, limits=limits, chain_len=self._chain_len))

    def _until_event(self, number: int) -> Iterator[Step]:
        requests = set[int]()
        while number not in requests:
            step = self._step()
            requests = step[1]
            yield step

    def _step(self) -> Step:
        started = time.perf_counter()
        requests = {event.request for event in self._engine.step()}
        return 1e3 * (time.perf_counter() - started), requests


def intervals_of(steps: Iterable[Step], running: set[int]) -> Iterator[float]:
    """Yield the milliseconds between steps with events of running requests."""
    spent = 0.0
    for ms, requests in steps:
        spent += ms
        if requests & running:
            yield spent
            spent = 0.0
