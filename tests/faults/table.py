"""Make every fault we can think of, run the real commands on it, and print what they did.

A row fails when the exit code is not the declared one, when there is a traceback or more than one
line on stderr, when the command does not end, when it leaves something behind, or when its output
is wrong. Exits with 1 when a row fails.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from faults.artifact_faults import artifact_faults
from faults.checkpoint_faults import checkpoint_faults
from faults.cuda_faults import cuda_faults
from faults.fault import Fault
from faults.memory_faults import memory_faults
from faults.output_faults import output_faults
from faults.place_faults import place_faults
from faults.prompt_faults import prompt_faults
from faults.signal_faults import signal_faults
from faults.trial import Row, try_fault

WIDTH = 240


def all_faults() -> Iterator[Fault]:
    """Every row, in the order of the table."""
    yield from artifact_faults()
    yield from cuda_faults()
    yield from place_faults()
    yield from prompt_faults()
    yield from checkpoint_faults()
    yield from output_faults()
    yield from memory_faults()
    yield from signal_faults()


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--only", default=["*"], multiple=True, metavar="PATTERN",
              help="Rows whose name fits, as in a shell.")  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Commands run at once."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
def main(artifact: Path, only: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Run the table against ARTIFACT, an export of the shipped pair for XNNPACK."""
    chosen = [fault for fault in all_faults() if any(fnmatch(fault.name, one) for one in only)]
    if not chosen:
        raise SettingError(f"--only {' '.join(only)}: fits no row")
    if not as_json:
        click.echo(f"{len(chosen)} faults")
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda fault: try_fault(fault, artifact.resolve()), chosen):
            rows.append(row)
            if as_json:
                click.echo(json.dumps(row.to_json()))
            elif row.wrong:
                click.echo(f"WRONG: {row.fault}: {'; '.join(row.wrong)}", err=True)
    if not as_json:
        show(rows)
    sys.exit(any(row.wrong for row in rows))


def show(rows: list[Row]) -> None:
    """The table and a line below it."""
    table = Table(box=None, pad_edge=False)
    for title in ("fault", "command", "code", "left", "s", "what the command said"):
        table.add_column(title, overflow="fold", justify="right" if title == "s" else "left")
    for row in rows:
        said = f"skipped: {row.skipped}" if row.skipped else row.line or "(nothing)"
        said = "; ".join(("WRONG", *row.wrong, said)) if row.wrong else said
        left = ", ".join(row.left) or "-"
        code = "-" if row.code is None else str(row.code)
        table.add_row(row.fault, row.command, code, left, f"{row.seconds:.1f}", said)
    Console(width=WIDTH, highlight=False, markup=False).print(table)
    run = [row for row in rows if not row.skipped]
    tracebacks = sum("Traceback" in row.line for row in run)
    hangs = sum(row.code is None for row in run)
    failed = sum(bool(row.wrong) for row in run)
    click.echo(
        f"\n{len(run)} faults: {failed} wrong, {tracebacks} tracebacks, {hangs} hangs; "
        f"{len(rows) - len(run)} could not be made on this machine"
    )


if __name__ == "__main__":
    main()
