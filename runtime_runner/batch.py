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

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner.results.failures import Failures
from eagle_aot.runtime_runner.results.report import summary, table_of, totals
from eagle_aot.runtime_runner.results.result import Result, Span

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.engine import Failed
    from eagle_aot.runtime_runner.runner import Runner


class Batch:
    """Answers in the order of the prompts on stdout, all else on stderr."""

    def __init__(self, runner: "Runner", *, as_json: bool, quiet: bool) -> None:
        self._runner, self._as_json, self._quiet = runner, as_json, quiet
        self._beside = Console(stderr=True)
        self._failures = Failures(as_json=as_json)
        self.results: list[Result] = []

    def run(self, prompts: Sequence[Prompt], batch_size: int, options: dict[str, Any]) -> None:
        """Answer all prompts; `options` are fields of `GenerationParams`.

        Raises EagleError after the last one if some could not be answered.
        """
        text = {"system": options["system"], "raw": options["raw_prompt"]}
        count = len(prompts) * options["n"]
        with suppress(PromptError):  # which is told in its turn
            self._runner.encode(prompts[0], **text)  # loads the tokenizer before the clock starts
        started = time.perf_counter()
        answers = self._runner.generate_many(prompts, batch_size, keep_going=True, **options)
        for number, answer in enumerate(self._shown(answers, count), start=1):
            self._take(number, answer)
        seconds = time.perf_counter() - started
        if self.results:
            self._tell_totals(batch_size, seconds)
        self._failures.raise_any(count)

    def _shown(
        self, answers: "Iterator[Result | Failed]", count: int
    ) -> "Iterator[Result | Failed]":
        """With a bar on a terminal whose stdout goes elsewhere."""
        columns = TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        hidden = self._quiet or sys.stdout.isatty() or not self._beside.is_terminal
        with Progress(*columns, console=self._beside, disable=hidden) as progress:
            yield from progress.track(answers, total=count)

    def _take(self, number: int, answer: "Result | Failed") -> None:
        if isinstance(answer, Result):
            self.results.append(answer)
            plain = answer.text if answer.text is not None else answer.ids
            click.echo(json.dumps(answer.to_json()) if self._as_json else plain)
            self._tell_seed(answer.parameters.seed)
            return
        self._failures.add(number, answer.error)

    def _tell_seed(self, seed: int | None) -> None:
        """With which this answer can be had again; JSON holds it."""
        if seed is not None and not self._as_json and not self._quiet:
            self._beside.print(f"seed {seed}", style="dim", highlight=False)

    def _tell_totals(self, batch_size: int, seconds: float) -> None:
        whole = together(self.results, batch_size, seconds)
        if self._as_json:
            found = summary(self.results)
            click.echo(json.dumps({"summary": found["summary"] | whole}))
        elif not self._quiet:
            self._beside.print("\nIn all", totals(self.results), lines(whole), sep="\n")


def together(results: Sequence[Result], batch_size: int, seconds: float) -> dict[str, Any]:
    """Of several texts side by side: tokens of all a second of the clock, and seconds from a text's
    turn to its first token."""
    waits = [span.first_token - span.started for span in spans(results)]
    return {
        "batch_size": batch_size,
        "seconds": seconds,
        "tokens_per_second_of_all": sum(len(r.token_ids) for r in results) / seconds,
        "median_seconds_to_first_token": statistics.median(waits),
        "longest_seconds_to_first_token": max(waits),
    }


def lines(whole: dict[str, Any]) -> Any:
    """The same for a reader."""
    return table_of(
        ("side by side", f"{whole['batch_size']} at most"),
        ("tokens of all", f"{whole['tokens_per_second_of_all']:.0f} tokens/s"),
        (
            "to the first token",
            f"{whole['median_seconds_to_first_token']:.2f} s, "
            f"{whole['longest_seconds_to_first_token']:.2f} s at most",
        ),
    )


def spans(results: Sequence[Result]) -> list[Span]:
    """Of those that were served."""
    return [result.span for result in results if result.span is not None]
