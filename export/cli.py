"""`eagle-export`: a target and its draft head in, one artifact out."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from eagle_aot.common.command import eagle_command, given_options
from eagle_aot.common.errors import PairingError

if TYPE_CHECKING:
    from eagle_aot.export import ExportOptions, Source

SCHEMES = [f"int4-g{group}{method}" for method in ("", "-hqq") for group in (32, 64, 128)]
"""The names in `targets/int4/quantise.py`, which imports torch."""

DRAFT_QUANTS = ["none", "int8", "int4"]
"""The names in `draft_quant.py`, which imports torch."""

BESIDE_REPRODUCE = {"reproduce", "target_dir", "draft_dir", "output_dir", "as_json"}


@eagle_command
@click.option("--target-model", metavar="NAME",
              help="A line of --list-targets, or auto: what config.json says.")  # fmt: skip
@click.option("--target-dir", type=click.Path(path_type=Path), help="The target's checkpoint.")
@click.option("--draft-dir", type=click.Path(path_type=Path), help="The draft head's checkpoint.")
@click.option("--output-dir", type=click.Path(path_type=Path), help="Default: ./NAME-BACKEND.")
@click.option("--backend", type=click.Choice(["auto", "cuda", "xnnpack"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--attention", type=click.Choice(["splitk", "stock"]),
              help="Verification's and drafting's; splitk is CUDA's default.")  # fmt: skip
@click.option(
    "--chain-len", type=int, metavar="K", help="Default number of drafts per round, 1-15."
)
@click.option(
    "--max-seq-len", type=click.IntRange(16, 2**20), metavar="N", help="Context, in tokens."
)
@click.option("--max-prefill", type=click.IntRange(1, 65536), default=512, show_default=True,
              metavar="N", help="Longest prompt chunk, in tokens.")  # fmt: skip
@click.option("--max-batch-size", type=int, default=1, show_default=True, metavar="B",
              help="Sequences that the caches hold.")  # fmt: skip
@click.option("--load-format", type=click.Choice(["auto", "dummy"]), default="auto",
              show_default=True, help="dummy: full geometry, random weights.")  # fmt: skip
@click.option("--dummy-layers", type=click.IntRange(min=1), metavar="N",
              help="Only the first N layers of a dummy.")  # fmt: skip
@click.option("--quantize", type=click.Choice(SCHEMES), metavar="SCHEME",
              help=f"Make the target's dense linears INT4: {', '.join(SCHEMES)}.")  # fmt: skip
@click.option("--draft-quant", type=click.Choice(DRAFT_QUANTS), default="none", show_default=True,
              help="Hold the head's linears in fewer bits; the text stays the same.")  # fmt: skip
@click.option("--check-only", is_flag=True, help="Check the graphs; lower and write nothing.")
@click.option("--tap-layers", metavar="A,B,C",
              help="Boundaries that the head taps, whatever its config.json says.")  # fmt: skip
@click.option("--describe-draft", type=click.Path(path_type=Path), metavar="DIR",
              help="Show how a draft head is understood and exit; a target helps.")  # fmt: skip
@click.option("--self-test", is_flag=True,
              help="Rank the readings of the head by how they draft and exit. An export does this "
                   "too, but for a target of more than 10^9 parameters without a GPU.")  # fmt: skip
@click.option("--no-self-test", is_flag=True, help="Export without it.")
@click.option("--self-test-prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="Its prompts, as eagle-run --prompts-jsonl takes them; 24 tokens of each answer "
                   "are decoded.")  # fmt: skip
@click.option("--reproduce", type=click.Path(path_type=Path), metavar="manifest.json",
              help="Repeat a recorded export and say what differs.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="What is shown as one JSON object.")  # fmt: skip
@click.option("--list-targets", is_flag=True, help="Show the known targets and exit.")
def main(
    target_model: str | None,
    target_dir: Path | None,
    draft_dir: Path | None,
    output_dir: Path | None,
    backend: str,
    attention: str | None,
    chain_len: int | None,
    max_seq_len: int | None,
    max_prefill: int,
    max_batch_size: int,
    load_format: str,
    dummy_layers: int | None,
    quantize: str | None,
    draft_quant: str,
    check_only: bool,
    tap_layers: str | None,
    describe_draft: Path | None,
    self_test: bool,
    no_self_test: bool,
    self_test_prompts: Path | None,
    reproduce: Path | None,
    as_json: bool,
    list_targets: bool,
) -> None:
    """Export a target model and its EAGLE-3 draft head to one ExecuTorch program."""
    from eagle_aot.export import ExportOptions, Source, run_check, run_export  # imports torch
    from eagle_aot.export.drafters.eagle3.reading.taps import parse_tap_layers
    from eagle_aot.export.lowering.backend import choose_backend

    if list_targets:
        print_targets()
        return
    if reproduce is not None:
        print_reproduction(reproduce, target_dir, draft_dir, output_dir, as_json)
        return
    if as_json and describe_draft is None and not self_test:
        raise click.UsageError("--json goes with --describe-draft, --self-test and --reproduce")
    if no_self_test and (self_test or self_test_prompts is not None):
        raise click.UsageError("--no-self-test leaves nothing for --self-test options to say")
    if describe_draft is not None:
        print_draft(describe_draft, target_dir, target_model, tap_layers, as_json)
        return
    if target_model is None:
        raise click.UsageError("--target-model is needed (see --list-targets)")
    source = Source.find(target_model, target_dir, draft_dir, load_format, dummy_layers,
                         parse_tap_layers(tap_layers), quantize, draft_quant)  # fmt: skip
    options = ExportOptions(
        backend=backend,
        attention=attention,
        chain_len=chain_len,
        max_seq_len=max_seq_len,
        max_prefill=max_prefill,
        max_batch_size=max_batch_size,
        no_self_test=no_self_test,
        self_test_prompts=self_test_prompts,
    )
    if self_test:
        show_self_test(source, options, as_json)
        return
    if check_only:
        for name, program in run_check(source, options).items():
            click.echo(f"{name}: {len(program.graph.nodes)} nodes, graph contract holds")
        return
    backend = choose_backend(backend)
    output_dir = output_dir or Path(f"{source.target_model}-{backend}")
    run_export(source, output_dir, options)
    size = sum(path.stat().st_size for path in output_dir.iterdir()) / 1e6
    click.echo(f"{output_dir}{os.sep}: {size:.1f} MB, backend {backend}, load format {load_format}")


def show_self_test(source: "Source", options: "ExportOptions", as_json: bool) -> None:
    """The ranking and the finding; a warning is what was asked for, so it is a failure here."""
    from eagle_aot.export.drafters.eagle3.self_test.report import show
    from eagle_aot.export.pipeline import run_self_test

    verdict = run_self_test(source, options)
    if as_json:
        click.echo(json.dumps(verdict.to_json(), allow_nan=False))
    else:
        show(verdict, Console(stderr=True))
    if verdict.is_warning:
        raise PairingError(f"self-test: {verdict.message}")


def print_targets() -> None:
    """One line per target: name and what it is."""
    from eagle_aot.targets import TARGETS

    for name, spec in TARGETS.items():
        click.echo(f"{name:<16} {spec.summary}")


def print_reproduction(
    recorded: Path,
    target_dir: Path | None,
    draft_dir: Path | None,
    output_dir: Path | None,
    as_json: bool,
) -> None:
    """Repeat an export with all its options; say where, and what differs."""
    from eagle_aot.export.reproduce import reproduce

    if others := given_options(but=BESIDE_REPRODUCE):
        raise click.UsageError(
            f"--reproduce takes its options from the manifest: leave out {others[0]}"
        )
    place, found = reproduce(recorded, main, target_dir, draft_dir, output_dir)
    if as_json:
        click.echo(json.dumps({"output_dir": str(place), **found.to_json()}))
        return
    verdict = "every file is the same, bit for bit" if found.identical else "not the same"
    click.echo("\n".join([*found.report(), f"{place}{os.sep}: {verdict}"]))


def print_draft(
    directory: Path,
    target_dir: Path | None,
    target_model: str | None,
    tap_layers: str | None,
    as_json: bool,
) -> None:
    """How a head is understood, for a reader or for a program."""
    from eagle_aot.export.drafters.eagle3.describe import describe_draft, report
    from eagle_aot.export.drafters.eagle3.reading.taps import parse_tap_layers
    from eagle_aot.export.drafters.eagle3.target import TargetFacts

    target = TargetFacts.find(target_dir, target_model)
    description = describe_draft(directory, target, parse_tap_layers(tap_layers))
    click.echo(json.dumps(description) if as_json else "\n".join(report(description)))
