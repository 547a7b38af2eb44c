"""A profile as a person reads it, and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from eagle_aot.artifact import Stage
from eagle_aot.common.progress import line
from eagle_aot.common.text import gigabytes
from eagle_aot.lab.bench.kernels.verify.kernels import DENSE, Kernel, class_of, shares
from eagle_aot.lab.bench.kernels.verify.measure import Results, Verify
from eagle_aot.lab.bench.report import table_of
from eagle_aot.lab.header import Header, title_lines

LONGEST = 25
NOTES = (
    "Caches hold standard normal numbers, tokens are random. The floor reads every weight once and",
    "of the caches what may be attended. Kernels by CUPTI; gaps are what the graph takes beside",
    f"them. '{DENSE}' holds all dense GEMMs: the draft head's fc, a few per cent of it, as well.",
)


def report(head: Header, results: Results, stages: list[Stage]) -> Iterator[str | Table]:
    """Where, how, and per forward a line and two tables."""
    yield from title_lines(head)
    yield f"{head.subject}; reads {results.read_bandwidth / 1e9:,.1f} GB/s"
    yield from NOTES
    for verify in results.verifies:
        yield f"\n[bold]{summary(verify)}[/bold]"
        yield shares_table(verify)
        yield kernels_table(verify.kernels)
    yield "\n" + "\n".join(line(stage) for stage in stages)


def summary(verify: Verify) -> str:
    """A forward in two lines."""
    floor = verify.floor
    return (
        f"T = {verify.rows} behind {verify.context:,} tokens: {verify.graph_us:,.0f} us, of which "
        f"kernels {verify.kernels_us:,.0f} us, gaps {verify.gaps_us:,.0f} us\n"
        f"floor {1e3 * floor.ms:,.0f} us ({gigabytes(floor.bytes)}): {verify.to_floor:.2f} x floor"
    )


def shares_table(verify: Verify) -> Table:
    """The classes of a forward's kernels."""
    table = table_of("class", "kernels", "us", "share")
    for part in shares(verify.kernels):
        table.add_row(part.name, f"{part.launches:g}", f"{part.us:,.1f}", f"{part.share:.1%}")
    return table


def kernels_table(kernels: list[Kernel]) -> Table:
    """The kernels that take longest."""
    table = Table()
    for name in ("kernels", "total us", "mean us"):
        table.add_column(name, justify="right")
    table.add_column("class", no_wrap=True)
    table.add_column(f"name (the first {LONGEST} by time of {len(kernels)})", overflow="fold")
    for k in kernels[:LONGEST]:
        row = f"{k.launches:g}", f"{k.us:,.1f}", f"{k.mean_us:,.2f}", class_of(k.name)
        table.add_row(*row, escape(k.name))
    return table


def to_json(head: Header, results: Results, stages: list[Stage]) -> dict[str, Any]:
    """All of it, every kernel included. Times are microseconds unless a name says otherwise."""
    return {
        **asdict(head),
        "read_gb_per_second": results.read_bandwidth / 1e9,
        "stages": msgspec.to_builtins(stages),
        "forwards": [verify_json(verify) for verify in results.verifies],
    }


def verify_json(verify: Verify) -> dict[str, Any]:
    """One forward."""
    return {
        "context": verify.context,
        "rows": verify.rows,
        "graph_us": verify.graph_us,
        "kernels_us": verify.kernels_us,
        "gaps_us": verify.gaps_us,
        "floor_bytes": verify.floor.bytes,
        "floor_us": 1e3 * verify.floor.ms,
        "to_floor": verify.to_floor,
        "classes": [asdict(part) for part in shares(verify.kernels)],
        "kernels": [asdict(k) | {"class": class_of(k.name)} for k in verify.kernels],
    }
