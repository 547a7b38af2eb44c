"""INT4 linears of Gemma-4-31B on this GPU: time, share of the read bandwidth, and peers.

    python scripts/bench_int4_gemm.py > gemm.txt
    python scripts/bench_int4_gemm.py --groups 32 --rows 1,8 --json

Weights are read in turn from copies that exceed the L2 cache; times are medians of CUDA-graph
replays. "kernel" is this project's small-M kernel, "linear" the same with the parts of its split
added by a kernel of their own, which a compiled program adds in the kernel that follows.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.lab.bench.kernels.int4.linears import (
    dense,
    dequantised,
    few_rows,
    many_rows,
    parts_of,
    peers,
)
from eagle_aot.lab.bench.kernels.int4.measure import Timed, measure, random_weight
from eagle_aot.lab.bench.kernels.int4.shapes import SHAPES, Shape
from eagle_aot.lab.bench.memory import read_bandwidth
from eagle_aot.lab.bench.settings import numbers
from eagle_aot.lab.bench.timing import CudaClock
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import json_option

Times = dict[str, Timed]
PROJECT = {"kernel": parts_of, "linear": few_rows}
PREFILL_ROWS = 512
PREFILL = {"int4": many_rows, "dequantise, then bf16": dequantised, "bf16": dense}


@eagle_command
@click.option("--groups", default="128,32", show_default=True, metavar="G,...")
@click.option("--rows", default="1,2,4,8,16,32,64", show_default=True, metavar="M,...")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Time peers too.")
@click.option("--prefill/--no-prefill", default=True, show_default=True,
              help=f"Time {PREFILL_ROWS} rows too.")  # fmt: skip
@click.option("--commit", metavar="TEXT", help="The package's, where it has no git to ask.")
@json_option
def main(
    groups: str, rows: str, peer: bool, prefill: bool, commit: str | None, as_json: bool
) -> None:
    """Time INT4 linears of few and of many rows at the shapes of Gemma-4-31B."""
    if not torch.cuda.is_available():
        raise UnsupportedError("the kernels need an NVIDIA GPU, and this machine shows none")
    wanted = numbers("--rows", rows, int)
    bandwidth = read_bandwidth(CudaClock(), torch.device("cuda"))
    console = Console(width=200)
    head = header("Gemma-4-31B INT4 linears", commit)
    collected: dict[str, Any] = {"header": asdict(head), "read_bandwidth": bandwidth}
    if not as_json:
        for text in title_lines(head):
            console.print(text, highlight=False)
        console.print(f"reads {bandwidth / 1e12:.2f} TB/s\n")
    makers = PROJECT | (peers() if peer else {})
    for group in numbers("--groups", groups, int):
        results = {shape: times(makers, shape, group, wanted) for shape in SHAPES}
        collected[f"group {group}"] = as_records(results)
        if not as_json:
            console.print(few_rows_table(results, group, wanted, bandwidth))
            console.print(summary(results, group, wanted, bandwidth) + "\n")
        if prefill:
            many = {s: times(PREFILL, s, group, [PREFILL_ROWS]) for s in SHAPES[:-1]}
            collected[f"prefill, group {group}"] = as_records(many)
            if not as_json:
                console.print(prefill_table(many, group))
    if as_json:
        print(json.dumps(collected))


def times(makers: dict[str, Any], shape: Shape, group: int, rows: Sequence[int]) -> Times:
    """All linears over one random weight. One that fails is left out, and says why."""
    weight = random_weight(shape, group)
    found = {}
    for name, make in makers.items():
        try:
            found[name] = measure(make, weight, rows, shape.nbytes(group))
        except (RuntimeError, ValueError) as error:  # a peer without a kernel for the shape
            click.echo(f"{name}, {shape.name}: {str(error).splitlines()[0]}", err=True)
        torch.cuda.empty_cache()
    return found


def few_rows_table(
    results: dict[Shape, Times], group: int, rows: Sequence[int], bandwidth: float
) -> Table:
    """One line for each shape and number of rows."""
    names = list(dict.fromkeys(name for times in results.values() for name in times))
    table = Table(title=f"group {group}", title_justify="left")
    for column in ("shape", "N x K", "M", *(f"{n} us" for n in names), "TB/s", "share", "error"):
        table.add_column(column, justify="right")
    for shape, times in results.items():
        for m in rows:
            rate = shape.nbytes(group) / times["linear"].us[m] * 1e6
            cells = [f"{times[n].us[m]:.1f}" if n in times else "-" for n in names]
            table.add_row(
                shape.name, f"{shape.n} x {shape.k}", str(m), *cells,
                f"{rate / 1e12:.2f}", f"{rate / bandwidth:.0%}", f"{times['linear'].error:.1e}",
            )  # fmt: skip
    return table


def summary(results: dict[Shape, Times], group: int, rows: Sequence[int], bandwidth: float) -> str:
    """Over one forward of 31B without the output table, which checkpoints keep in bfloat16."""
    shapes = [shape for shape in results if shape.per_forward > 1]
    nbytes = sum(shape.per_forward * shape.nbytes(group) for shape in shapes)
    lines = []
    for m in rows:
        us = {
            name: sum(shape.per_forward * results[shape][name].us[m] for shape in shapes)
            for name in PROJECT
        }
        share = {name: nbytes / time * 1e6 / bandwidth for name, time in us.items()}
        lines.append(
            f"M = {m}, one forward ({nbytes / 1e9:.1f} GB): kernels {us['kernel'] / 1e3:.2f} ms, "
            f"{share['kernel']:.0%} of the read bandwidth; linears {us['linear'] / 1e3:.2f} ms, "
            f"{share['linear']:.0%}"
        )
    lines += [f"M = {m} takes {ratios(results, m, rows[0])} x M = {rows[0]}" for m in rows[1:]]
    return "\n".join(lines)


def ratios(results: dict[Shape, Times], m: int, one: int) -> str:
    """Of the kernel's times at `m` rows to those at `one`, for each shape."""
    times = {shape.name: timed["kernel"].us for shape, timed in results.items()}
    return ", ".join(f"{us[m] / us[one]:.3f} ({name})" for name, us in times.items())


def prefill_table(results: dict[Shape, Times], group: int) -> Table:
    """Microseconds and TFLOP/s of a prompt chunk."""
    table = Table(title=f"M = {PREFILL_ROWS}, group {group}", title_justify="left")
    for column in ("shape", *(f"{n} {unit}" for n in PREFILL for unit in ("us", "TFLOP/s"))):
        table.add_column(column, justify="right")
    for shape, times in results.items():
        cells = []
        for name in PREFILL:
            us = times[name].us[PREFILL_ROWS]
            cells += [f"{us:.0f}", f"{shape.flop(PREFILL_ROWS) / us / 1e6:.0f}"]
        table.add_row(shape.name, *cells)
    return table


def as_records(results: dict[Shape, Times]) -> list[dict[str, Any]]:
    return [
        {"shape": shape.name, "linear": name, "us": timed.us, "error": timed.error}
        for shape, times in results.items()
        for name, timed in times.items()
    ]


if __name__ == "__main__":
    main()
