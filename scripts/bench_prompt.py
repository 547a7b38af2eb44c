"""A prompt of Gemma-4-31B on this GPU in parts: products, attention, and six layers."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click
import torch
from rich.console import Console
from rich.table import Table

from bench.prompt import attention, layers, products
from bench.sdpa.layers import LAYERS
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import UnsupportedError
from shared.header import header, title_lines
from shared.number_list import numbers
from shared.options import json_option

PARTS = "products", "attention", "layers"
GEMMA = tuple(layer for layer in LAYERS if layer.name.startswith("Gemma"))
CONTEXTS = 0, 6144, 30720
"""Tokens behind which layers run a chunk."""


@eagle_command
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these.")
@click.option("--groups", default="32,128", show_default=True, callback=numbers)
@click.option("--rows", default="512,1024,1536,2048,4096", show_default=True, callback=numbers,
              help="Of a chunk.")  # fmt: skip
@click.option("--sweep/--no-sweep", default=True, show_default=True, help="Try other tiles.")
@click.option("--peers/--no-peers", default=True, show_default=True)
@click.option("--commit", metavar="TEXT", help="The package's, where it has no git to ask.")
@json_option
def main(
    parts: tuple[str, ...],
    groups: list[int],
    rows: list[int],
    sweep: bool,
    peers: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Where a prompt's time goes, and what other tiles and other libraries would take.

    \b
        python scripts/bench_prompt.py --part layers
        python scripts/bench_prompt.py --part attention --no-peers
        python scripts/bench_prompt.py --part products --groups 32

    Medians of CUDA graph replays over random numbers, of buffers that L2 does not hold together.
    """
    if not torch.cuda.is_available():
        raise UnsupportedError("the bench needs an NVIDIA GPU, and this machine shows none")
    torch.manual_seed(0)
    notes, head = set[str](), header("a prompt of Gemma-4-31B", commit)
    console = Console(highlight=False, width=160, quiet=as_json)
    console.print(*title_lines(head), sep="\n")
    found: dict[str, object] = {}
    wanted = parts or PARTS
    if "layers" in wanted:
        found["layers"] = of_layers(console, rows)
    if "attention" in wanted:
        chunks = [asdict(one) for one in of_attention(console, sweep, peers, notes)]
        found["attention"] = chunks
    if "products" in wanted:
        made = of_products(console, groups, rows, sweep, peers, notes)
        found["products"] = [asdict(one) for one in made]
    console.print(*sorted(notes), sep="\n", markup=False)
    if as_json:
        click.echo(json.dumps({**asdict(head), **found, "notes": sorted(notes)}))


def of_layers(console: Console, rows: Sequence[int]) -> dict[str, object]:
    """Six layers at all contexts; whether cuts change bits; and where a chunk's time goes."""
    end = CONTEXTS[-1] + max(rows)
    model = layers.random_layers(end, max(rows))
    same = {n: model.uncut(n, layers.CUTS[-1], layers.CUTS) for n in CONTEXTS}
    timed = [model.measure(behind, n) for behind in CONTEXTS for n in rows]
    drawn = Table("behind", "rows", "ms", "tokens/s of 60", title="six layers")
    for one in timed:
        cells = f"{one.behind:,}", f"{one.rows:,}", f"{one.us / 1e3:.2f}"
        drawn.add_row(*cells, f"{one.tokens_per_second:,.0f}")
    console.print(drawn)
    console.print(f"rows have the same bits cut at {layers.CUTS}: {same}")
    split = {behind: model.split(behind, 2048) for behind in CONTEXTS}
    for behind, shares in split.items():
        parts = ", ".join(f"{s.name} {s.us / 1e3:.2f} ms ({s.share:.0%})" for s in shares)
        console.print(f"2,048 rows behind {behind:,}: {parts}")
    return {
        "times": [asdict(one) for one in timed],
        "same_bits": same,
        "shares": {behind: [asdict(s) for s in shares] for behind, shares in split.items()},
    }


def of_attention(
    console: Console, sweep: bool, peers: bool, notes: set[str]
) -> list[attention.Attended]:
    """Both kinds of layers at all points."""
    found = []
    for layer in GEMMA:
        drawn = Table("", *(f"{b:,} + {n:,}: us" for b, n in attention.POINTS), "TFLOP/s", "error",
                      title=layer.name)  # fmt: skip
        here = []
        for behind, rows in attention.POINTS:
            chunk = attention.random_chunk(layer, behind, rows, "cuda")
            here += attention.measure(chunk, sweep, peers, notes)
        for name in dict.fromkeys(one.name for one in here):
            at = {one.behind: one for one in here if one.name == name}
            us = [f"{at[b].us:,.0f}" if b in at else "-" for b, _ in attention.POINTS]
            rates = " / ".join(f"{one.flop / one.us / 1e6:.0f}" for one in at.values())
            drawn.add_row(name, *us, rates, f"{max(one.error for one in at.values()):.1e}")
        console.print(drawn)
        found += here
    return found


def of_products(
    console: Console,
    groups: Sequence[int],
    rows: Sequence[int],
    sweep: bool,
    peers: bool,
    notes: set[str],
) -> list[products.Product]:
    """All shapes with the chosen tile and beside peers; some with other tiles."""
    found = []
    for group in groups:
        drawn = Table("shape", "", *(f"{m:,}: us" for m in rows), "TFLOP/s", "error",
                      title=f"INT4 products, group {group}")  # fmt: skip
        here = []
        for shape in products.PROMPT_SHAPES:
            tiles = products.tiles(group)
            swept = sweep and shape.name in products.SWEPT
            makers = tiles if swept else {"chosen": tiles["chosen"]}
            if peers and group == groups[0]:
                makers = makers | products.PEERS
            here += products.measure(shape, group, makers, rows, notes)
        for p in here:
            rates = " / ".join(f"{p.shape.flop(m) / us / 1e6:.0f}" for m, us in p.us.items())
            us = (f"{us:,.0f}" for us in p.us.values())
            drawn.add_row(p.shape.name, p.name, *us, rates, f"{p.error:.1e}")
        console.print(drawn)
        for name in ("chosen", *products.PEERS):
            sums = {m: products.forward_ms(here, group, name, m) for m in rows}
            if all(sums.values()):
                each = ", ".join(f"{m:,} rows {ms:.1f} ms" for m, ms in sums.items())
                console.print(f"all products of a forward, {name}: {each}")
        found += here
    return found


if __name__ == "__main__":
    main()
