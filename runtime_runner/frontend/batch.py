"""`eagle-run --batch-size`: a file of prompts, several at a time."""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.report import Failures, summary, table_of, totals

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.cli import RunSpec
    from eagle_aot.runtime_runner.engine import Failed
    from eagle_aot.runtime_runner.runner import Runner


class PromptBatch:
    """Prints answers to stdout in the order of the prompts, and everything else to stderr."""

    def __init__(self, runner: "Runner", spec: "RunSpec") -> None:
        self._runner, self._spec = runner, spec
        self._stderr = Console(stderr=True)
        self._failures = Failures(as_json=spec.as_json)
        self.results: list[Result] = []

    def run(self, prompts: Sequence[Prompt], batch_size: int, options: dict[str, Any]) -> None:
        """Answer all prompts; `options` are fields of `GenerationParams`. Raises EagleError at the
        end if some could not be answered."""
        params = GenerationParams(**options)
        count = len(prompts) * params.n
        with suppress(PromptError):  # it is reported when its turn comes
            self._runner.read(prompts[0], params)  # loads the tokenizer before the clock starts
        started = time.perf_counter()
        answers = self._runner.generate_many(prompts, batch_size, keep_going=True, **options)
        for number, answer in enumerate(self._with_progress(answers, count), start=1):
            self._print(number, answer)
        seconds = time.perf_counter() - started
        if self.results:
            self._print_totals(batch_size, seconds)
        self._failures.raise_any(count)

    def _with_progress(
        self, answers: "Iterator[Result | Failed]", count: int
    ) -> "Iterator[Result | Failed]":
        """Show a bar on a terminal, unless answers go to the same terminal."""
        columns = TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        hidden = self._spec.quiet or sys.stdout.isatty() or not self._stderr.is_terminal
        with Progress(*columns, console=self._stderr, disable=hidden) as progress:
            yield from progress.track(answers, total=count)

    def _print(self, number: int, answer: "Result | Failed") -> None:
        if not isinstance(answer, Result):
            self._failures.add(number, answer.error)
            return
        self.results.append(answer)
        text = answer.text if answer.text is not None else answer.ids
        click.echo(json.dumps(answer.to_json()) if self._spec.as_json else text)
        seed = answer.parameters.seed
        if seed is not None and not self._spec.as_json and not self._spec.quiet:
            self._stderr.print(f"seed {seed}", style="dim", highlight=False)

    def _print_totals(self, batch_size: int, seconds: float) -> None:
        figures = batch_figures(self.results, batch_size, seconds)
        if self._spec.as_json:
            counts = summary(self.results)["summary"]
            click.echo(json.dumps({"summary": counts | figures}))
        elif not self._spec.quiet:
            self._stderr.print("\nIn all", totals(self.results), batch_table(figures), sep="\n")


def batch_figures(results: Sequence[Result], batch_size: int, seconds: float) -> dict[str, Any]:
    """Return figures of a whole batch: tokens of all requests a second of the clock, and seconds
    from a request's start to its first token."""
    waits = [r.times.first_token - r.times.started for r in results if r.times is not None]
    return {
        "batch_size": batch_size,
        "seconds": seconds,
        "tokens_per_second_of_all": sum(len(r.token_ids) for r in results) / seconds,
        "median_seconds_to_first_token": statistics.median(waits),
        "longest_seconds_to_first_token": max(waits),
    }


def batch_table(figures: dict[str, Any]) -> Table:
    """Return the figures of `batch_figures` as a table for a person."""
    return table_of(
        ("batch size", f"{figures['batch_size']} at most"),
        ("tokens of all", f"{figures['tokens_per_second_of_all']:.0f} tokens/s"),
        (
            "to the first token",
            f"{figures['median_seconds_to_first_token']:.2f} s, "
            f"{figures['longest_seconds_to_first_token']:.2f} s at most",
        ),
    )
