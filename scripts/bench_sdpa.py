"""The command line of a bench of `eagle_aot::sdpa_splitk`."""

import json
from dataclasses import asdict

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.lab.bench.kernels.sdpa.layers import FULL_BUFFER, LAYERS, MAX_ROWS, ROUND_ROWS, Layer
from eagle_aot.lab.bench.kernels.sdpa.measure import Bench, Measured
from eagle_aot.lab.bench.kernels.sdpa.peers import PEERS
from eagle_aot.lab.bench.kernels.sdpa.sweep import Ranked, sweep
from eagle_aot.lab.bench.memory import read_bandwidth
from eagle_aot.lab.bench.timing import CudaClock
from eagle_aot.lab.header import Header, header, title_lines
from eagle_aot.lab.options import json_option, numbers
from eagle_aot.triton_kernels.sdpa_splitk.tiling import TAIL, choose_tiling

REPORT_WIDTH = 160
CONTEXTS = "1024,2048,4096,8192,16384,32768,65536,131072"
BUFFERS = (8192, 32768, FULL_BUFFER)
SWEPT = ((1024, 1), (8192, 1), (8192, 8), (12288, 8), (65536, 8))


@eagle_command
@click.option("--contexts", default=CONTEXTS, show_default=True, callback=numbers)
@click.option("--rows", default="1,4,8,16,32,64", show_default=True, callback=numbers,
              help="Of each sequence.")  # fmt: skip
@click.option("--sequences", default="1,2,4,8", show_default=True, callback=numbers)
@click.option("--layer", "names", multiple=True, type=click.Choice([x.name for x in LAYERS]),
              help="Only these.")  # fmt: skip
@click.option("--no-peers", is_flag=True, help="Nothing but the operator.")
@click.option("--sweep", "swept", is_flag=True, help="Rank other tilings instead.")
@click.option("--commit", metavar="TEXT", help="The package's, where it has no git to ask.")
@json_option
def main(
    contexts: list[int],
    rows: list[int],
    sequences: list[int],
    names: tuple[str, ...],
    no_peers: bool,
    swept: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Attention of up to 64 rows over caches of 128K slots, on this GPU, in bfloat16.

    \b
        python scripts/bench_sdpa.py > sdpa.txt
        python scripts/bench_sdpa.py --sweep --layer Llama-like

    Medians of CUDA graph replays, over copies of the cache that do not fit in L2 together. A
    context counts the rows themselves. Beside it: PyTorch's SDPA with a mask over the whole buffer
    and over a slice of the right length, flex_attention, FlashInfer where it is installed.
    """
    if not torch.cuda.is_available():
        raise UnsupportedError("the bench needs an NVIDIA GPU, and this machine shows none")
    torch.manual_seed(0)
    notes = set[str]()
    layers = [layer for layer in LAYERS if not names or layer.name in names]
    bandwidth = read_bandwidth(CudaClock(), torch.device("cuda"))
    head = header("attention of a few rows", commit)
    console = Console(highlight=False, width=REPORT_WIDTH, quiet=as_json)
    console.print(*title_lines(head), sep="\n")
    console.print(f"reads {bandwidth / 1e9:,.1f} GB/s; peers in microseconds\n")
    found: list[Measured] = []
    rankings: dict[str, list[Ranked]] = {}
    for layer in layers:
        if swept:
            bench = Bench(layer, FULL_BUFFER, [c for c, _ in SWEPT], notes)
            rankings[layer.name] = sweep(bench, layer, SWEPT, notes)
            console.print(ranking_table(layer, rankings[layer.name]))
            continue
        peers = () if no_peers else tuple(PEERS)
        here = measured(layer, contexts, rows, sequences, peers, notes)
        here += in_other_buffers(layer, notes)
        console.print(table(layer.name, here, bandwidth))
        found += here
    console.print(*sorted(notes), sep="\n", markup=False)
    if as_json:
        click.echo(json.dumps(to_json(head, bandwidth, found, rankings, notes)))


def measured(
    layer: Layer,
    contexts: list[int],
    rows: list[int],
    sequences: list[int],
    peers: tuple[str, ...],
    notes: set[str],
) -> list[Measured]:
    """All contexts and numbers of rows, in buffers of one length."""
    found = []
    for b in sequences:
        bench = Bench(layer, FULL_BUFFER, contexts, notes, b)
        served = [m for m in rows if b * m <= MAX_ROWS]
        found += [bench.measure(c, m, peers) for c in contexts for m in served]
    return found


def in_other_buffers(layer: Layer, notes: set[str]) -> list[Measured]:
    """The same 8192 tokens in buffers of several lengths, and the one case that takes twice as
    long: rows on both sides of a position from which chunks are longer."""
    if layer.window:
        return []
    found = []
    for slots in BUFFERS:
        bench = Bench(layer, slots, [BUFFERS[0]], notes)
        found.append(bench.measure(BUFFERS[0], ROUND_ROWS))
    tiles = choose_tiling(layer.heads, layer.kv_heads, layer.head_dim, layer.window)
    border = BUFFERS[0] // (tiles.chunk * tiles.splits) * tiles.chunk * tiles.splits
    return [*found, bench.measure(border + TAIL + ROUND_ROWS // 2, ROUND_ROWS)]


def table(title: str, found: list[Measured], bandwidth: float) -> Table:
    """One line per measurement."""
    peers = list(dict.fromkeys(name for m in found for name in m.peers))
    head = (
        "buffer",
        "context",
        "B",
        "T",
        "us",
        "TB/s",
        "of reading",
        "to one row",
        "largest error",
    )
    drawn = Table(*head, *peers, title=title, title_justify="left")
    single = {(m.slots, m.context): m.us for m in found if m.rows == m.sequences == 1}
    for m in found:
        alone = single.get((m.slots, m.context))
        drawn.add_row(
            *(f"{m.slots:,}", f"{m.context:,}", str(m.sequences), str(m.rows), f"{m.us:.1f}"),
            *(f"{m.bandwidth / 1e12:.2f}", f"{m.bandwidth / bandwidth:.0%}"),
            *("" if alone is None else f"{m.us / alone:.2f}", f"{m.error:.1e}"),
            *(f"{m.peers[name]:,.1f}" if name in m.peers else "" for name in peers),
        )
    return drawn


def ranking_table(layer: Layer, ranked: list[Ranked]) -> Table:
    """The best first, in microseconds."""
    points = [f"{context:,} T={rows}" for context, rows in SWEPT]
    drawn = Table("tiling", "slowdown", *points, title=layer.name, title_justify="left")
    chosen = choose_tiling(layer.heads, layer.kv_heads, layer.head_dim, layer.window)
    for r in ranked:
        name = ", ".join(f"{field} {value}" for field, value in asdict(r.tiling).items())
        mark = " (chosen)" if r.tiling == chosen else ""
        drawn.add_row(name + mark, f"{r.slowdown:.3f}", *(f"{us:.1f}" for us in r.us))
    return drawn


def to_json(
    head: Header,
    bandwidth: float,
    found: list[Measured],
    rankings: dict[str, list[Ranked]],
    notes: set[str],
) -> dict[str, object]:
    """Everything that was found."""
    return {
        **asdict(head),
        "read_bandwidth": bandwidth,
        "measured": [asdict(m) for m in found],
        "rankings": {name: [asdict(r) for r in ranked] for name, ranked in rankings.items()},
        "notes": sorted(notes),
    }


if __name__ == "__main__":
    main()
