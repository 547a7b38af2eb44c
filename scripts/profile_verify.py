"""The command line of a profile of one `target_verify`."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import torch
from rich.console import Console

from eagle_aot.artifact import Manifest
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.progress import Progress
from eagle_aot.lab.bench.kernels.verify.measure import Results, check_lengths, measure
from eagle_aot.lab.bench.kernels.verify.program import (
    build,
    dummy_source,
    export_options,
    open_program,
)
from eagle_aot.lab.bench.kernels.verify.report import report, to_json
from eagle_aot.lab.bench.settings import numbers
from eagle_aot.lab.header import Header, header
from eagle_aot.lab.options import json_option
from eagle_aot.targets.step import MAX_ROWS

REPORT_WIDTH = 200  # columns, where stdout is no terminal: kernels have long names


@eagle_command
@click.option("--target-model", default="gemma4-31b", show_default=True, metavar="NAME")
@click.option("--dummy-layers", type=click.IntRange(min=3), metavar="N",
              help="Only the first N layers.  [default: all]")  # fmt: skip
@click.option("--max-seq-len", type=click.IntRange(16, 2**20), default=8192, show_default=True,
              metavar="S", help="Context that the caches are for, in tokens.")  # fmt: skip
@click.option("--attention", type=click.Choice(["splitk", "stock"]), help="As for eagle-export.")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR",
              help="Leave the program there.")  # fmt: skip
@click.option("--program", type=click.Path(path_type=Path), metavar="DIR",
              help="Build none: profile what --keep left, or any CUDA artifact.")  # fmt: skip
@click.option("--rows", default="1,4,8", show_default=True, metavar="T,...")
@click.option("--context", metavar="C,...", help="Tokens in the caches.  [default: all that fit]")
@click.option("--replays", type=click.IntRange(min=1), default=50, show_default=True,
              help="Samples of a time, of which the median counts.")  # fmt: skip
@click.option("--commit", metavar="TEXT", help="The package's, where it has no git to ask.")
@json_option
def main(
    target_model: str,
    dummy_layers: int | None,
    max_seq_len: int,
    attention: str | None,
    keep: Path | None,
    program: Path | None,
    rows: str,
    context: str | None,
    replays: int,
    commit: str | None,
    as_json: bool,
) -> None:
    """Where the time of one target_verify goes, by class of kernel, on this GPU.

    \b
        python scripts/profile_verify.py --dummy-layers 6
        python scripts/profile_verify.py --keep /tmp/verify > profile.txt
        python scripts/profile_verify.py --program /tmp/verify --rows 8 --context 512,4096

    Builds a target of random weights, compiles that one method of it, replays it as a CUDA graph
    and takes a replay apart with the profiler.
    """
    if keep and program:
        raise click.UsageError("--keep and --program: a program to keep, or one to profile")
    if not torch.cuda.is_available():
        raise UnsupportedError("a profile needs an NVIDIA GPU, and this machine shows none")
    wanted_rows = numbers("--rows", rows, int)
    contexts = numbers("--context", context, int) if context else ()
    progress = Progress()
    with built_or_kept(program or keep) as directory:
        if program is None:
            source = dummy_source(target_model, dummy_layers)
            check_lengths(wanted_rows, contexts, MAX_ROWS, max_seq_len)
            build(source, directory, export_options(max_seq_len, attention, progress))
        with progress.stage("open"):
            executor, constants = open_program(directory)
        contexts = contexts or (constants.max_seq_len,)
        check_lengths(wanted_rows, contexts, constants.max_rows, constants.max_seq_len)
        results = measure(executor, constants, wanted_rows, contexts, replays, progress)
        head = header(target_of(directory), commit)
    show(head, results, progress, as_json)


@contextmanager
def built_or_kept(directory: Path | None) -> Iterator[Path]:
    """`directory`, or a place that is gone afterwards."""
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="verify-profile-") as temporary:
        yield Path(temporary) / "program"


def target_of(directory: Path) -> str:
    """`gemma4-31b, dummy, 60 layers, context 8192`."""
    manifest = Manifest.read(directory)
    layers, context = (manifest.constants[f"get_{name}"] for name in ("n_layers", "max_seq_len"))
    name, weights = manifest.target.name, manifest.options["load_format"]
    return f"{name}, load format {weights}, {layers} layers, context {context}"


def show(head: Header, results: Results, progress: Progress, as_json: bool) -> None:
    """Print it, as one JSON object or for a person."""
    if as_json:
        click.echo(json.dumps(to_json(head, results, progress.stages)))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = REPORT_WIDTH
    console.print(*report(head, results, progress.stages), sep="\n")


if __name__ == "__main__":
    main()
