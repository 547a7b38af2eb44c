"""Options that all parts of `eagle-bench` share, and how a part prints its results."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option
from eagle_aot.lab.options import LabSpec

REPORT_WIDTH = 160  # columns, where stdout is no terminal
UNKNOWN = "-"


class BenchSpec(LabSpec, kw_only=True, frozen=True):
    """What every part takes."""

    commit: Annotated[
        str | None, Option("The version that the results name; default: git's.", metavar="TEXT")
    ] = None

    def show(self, subject: str, results: dict[str, Any], *texts: str | Table) -> None:
        """Print a header with the results, as one JSON object or as texts and tables."""
        from eagle_aot.lab.header import header, title_lines

        head = header(subject, self.commit)
        if self.as_json:
            click.echo(json.dumps({**asdict(head), **results}))
        else:
            console = new_console()
            console.print(*title_lines(head), "", *texts, sep="\n")


def new_console() -> Console:
    """Return a console on stdout that never wraps a table."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = REPORT_WIDTH
    return console


def check_range(option: str, values: Iterable[int], largest: int) -> None:
    """Raise SettingError unless all values lie in [1, largest]."""
    for value in values:
        if not 1 <= value <= largest:
            raise SettingError(f"{option} {value}: this artifact takes 1 to {largest}")


def check_taus(taus: Iterable[float]) -> None:
    """Raise SettingError for fewer tokens per round than one, or infinitely many."""
    for tau in taus:
        if not 1 <= tau < float("inf"):
            raise SettingError(f"--tau {tau}: a round emits at least 1 token")


def table_of(first: str, *others: str, title: str | None = None) -> Table:
    """Return an empty table whose columns after the first hold numbers."""
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def milliseconds(ms: float | None) -> str:
    """Format milliseconds to the microsecond."""
    return UNKNOWN if ms is None else f"{ms:.3f}"
