"""Statistics of generations and errors of prompts, as `eagle-run` prints them."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.decode.shape import AUTO
from eagle_aot.runtime_runner.decode.stats import Stats

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.frontend.generation import Result


def statistics(result: "Result") -> Table:
    """Return a table of two columns about one generation."""
    new_tokens = f"{len(result.token_ids)} (finish: {result.finish_reason})"
    seed = result.parameters.seed
    return table_of(
        ("new tokens", new_tokens),
        *([] if seed is None else [("seed", str(seed))]),
        *rows_of(result.stats),
        ("drafter", result.drafter or "-"),
        ("executor", result.executor),
    )


def totals(results: Sequence["Result"]) -> Table:
    """Return a table of two columns about all requests together."""
    new_tokens = sum(len(result.token_ids) for result in results)
    heads = ("requests", str(len(results))), ("new tokens", str(new_tokens))
    names = ", ".join(f"{name} for {count}" for name, count in drafters(results).items())
    return table_of(*heads, *rows_of(total(results)), ("drafter", names or "-"))


def summary(results: Sequence["Result"]) -> dict[str, Any]:
    """Return the last object of `--json`, about all requests together."""
    counts = {
        "requests": len(results),
        "prompt_tokens": sum(result.prompt_tokens for result in results),
        "new_tokens": sum(len(result.token_ids) for result in results),
    }
    return {"summary": counts | total(results).to_json() | {"drafters": drafters(results)}}


def drafters(results: Sequence["Result"]) -> dict[str, int]:
    """Return how many requests each drafter drafted for, by its name."""
    return dict(Counter(result.drafter for result in results if result.drafter is not None))


def total(results: Sequence["Result"]) -> Stats:
    """Return the statistics of all requests together."""
    return Stats.total([result.stats for result in results])


def rows_of(stats: Stats) -> Iterator[tuple[str, str]]:
    """Yield names and values of statistics, of one generation or of several."""
    speed, rate = stats.tokens_per_second, stats.acceptance_rate
    by_position = ", ".join(percent(a) for a in stats.acceptance_by_position)
    yield "target forwards", f"{stats.target_forwards} ({stats.prefill_chunks} for prompts)"
    yield "rounds", str(stats.rounds)
    if stats.chain_len == AUTO:
        name = "chain length" if stats.tree is None else "tree"
        yield name, f"{AUTO}: {chosen_shapes(stats)}"
    elif stats.tree is not None:
        yield "tree", str(stats.tree)
    yield "tau", "-" if stats.tau is None else f"{stats.tau:.2f} tokens per round"
    yield "drafts accepted", "-" if rate is None else f"{percent(rate)} of {stats.drafted}"
    yield "acceptance by position", by_position or "-"
    if by_rank := ", ".join(percent(share) for share in stats.acceptance_by_rank):
        yield "acceptance by rank", by_rank
    yield "decoding speed", "-" if speed is None else f"{speed:.0f} tokens/s"


def chosen_shapes(stats: Stats) -> str:
    """Return the shapes that were chosen, the most frequent first."""
    counts = stats.rounds_by_shape.most_common()
    return ", ".join(f"{shape} in {count} rounds" for shape, count in counts) or "-"


def percent(share: float) -> str:
    """Return a share in percent, without decimals."""
    return f"{100 * share:.0f} %"


def table_of(*rows: tuple[str, str]) -> Table:
    """Return a table of names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", value)
    return table


def write(text: str) -> None:
    """Print text to stdout without a line break after it."""
    click.echo(text, nl=False)


class Failures:
    """Reports prompts of a file that could not be answered: each on stderr, or as JSON in place of
    its answer, and all of them in one error at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._lines: list[str] = []

    def add(self, number: int, error: str) -> None:
        """Report the prompt with that number, counted from 1."""
        self._lines.append(f"prompt {number}: {error}")
        if self._as_json:
            click.echo(json.dumps({"error": error}))
        else:
            click.echo("")
            click.echo(f"Error: {self._lines[-1]}", err=True)

    def raise_any(self, count: int) -> None:
        """Raise EagleError if any of `count` prompts failed."""
        if self._lines:
            raise EagleError(f"{len(self._lines)} of {count} failed: {self._lines[0]}")
