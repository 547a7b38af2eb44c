"""`eagle-export`: a target and its draft head in, one artifact out."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from eagle_aot.artifact import DRAFTERS, PROGRAM, WEIGHTS, CacheBytes, Manifest
from eagle_aot.common.command import eagle_command, given_options
from eagle_aot.common.errors import PairingError
from eagle_aot.common.process import ended_by_sigterm
from eagle_aot.export.asked import Asked

if TYPE_CHECKING:
    from eagle_aot.export import Source

SCHEMES = [f"int4-g{group}{method}" for method in ("", "-hqq") for group in (32, 64, 128)]
"""The names in `targets/int4/quantise.py`, which imports torch."""

CPU_WEIGHTS = ["float32", "int8", "int4"]
"""The names in `prepare/cpu_weights/`."""

INPUTS = ["text", "text,image"]
"""The names in `options.py`, which imports torch."""

"""The names in `options.py`."""

QUANTS = ["none", "int8", "int4"]
"""The names in `targets/int4/quantisers.py`, which imports torch."""

BESIDE_REPRODUCE = {"reproduce", "target_dir", "draft_dir", "output_dir", "as_json"}


def numbers(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Whole numbers with commas between them: an option's callback."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not whole numbers and commas") from error


@eagle_command
@click.option("--target-model", metavar="NAME",
              help="A line of --list-targets, or auto: what config.json says.")  # fmt: skip
@click.option("--target-dir", type=click.Path(path_type=Path), metavar="DIR|FILE.gguf",
              help="The target's checkpoint.")  # fmt: skip
@click.option("--draft-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="The draft head's checkpoint.")  # fmt: skip
@click.option("--drafter", type=click.Choice(["auto", *DRAFTERS]), default="auto",
              show_default=True,
              help="What drafts; auto: a head where there is one, else ngram.")  # fmt: skip
@click.option("--output-dir", type=click.Path(path_type=Path), help="Default: ./NAME-BACKEND.")
@click.option("--backend", type=click.Choice(["auto", "cuda", "xnnpack"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--attention", type=click.Choice(["splitk", "stock"]),
              help="Verification's and drafting's; splitk is CUDA's default.")  # fmt: skip
@click.option("--cpu-weights", type=click.Choice(CPU_WEIGHTS), default="float32",
              show_default=True,
              help="What XNNPACK multiplies with; int8 and int4 round inputs, too.")  # fmt: skip
@click.option(
    "--chain-len", type=int, metavar="K", help="Default number of drafts per round, 1-15."
)
@click.option(
    "--max-seq-len", type=click.IntRange(16, 2**20), metavar="N", help="Context, in tokens."
)
@click.option("--max-prefill", type=click.IntRange(1, 65536), metavar="N",
              help="Longest prompt chunk, in tokens: 1536 for CUDA, 512 for XNNPACK.")  # fmt: skip
@click.option("--max-batch-size", type=int, default=1, show_default=True, metavar="B",
              help="Sequences that the caches hold.")  # fmt: skip
@click.option("--inputs", type=click.Choice(INPUTS), default="text", show_default=True,
              help="What prompts may hold: text alone, or pictures as well.")  # fmt: skip
@click.option("--image-tokens", callback=numbers, metavar="N,...",
              help="Rows of a prompt that a picture takes at most: 70, 140, 280, 560 or 1120, or "
                   "several, the default first; default: the checkpoint's.")  # fmt: skip
@click.option("--load-format", type=click.Choice(["auto", "dummy"]), default="auto",
              show_default=True, help="dummy: full geometry, random weights.")  # fmt: skip
@click.option("--dummy-layers", type=click.IntRange(min=1), metavar="N",
              help="Only the first N layers of a dummy.")  # fmt: skip
@click.option("--quantize", type=click.Choice(SCHEMES), metavar="SCHEME",
              help=f"Make the target's dense linears INT4: {', '.join(SCHEMES)}.")  # fmt: skip
@click.option("--draft-quant", type=click.Choice(QUANTS), default="none", show_default=True,
              help="Hold the head's linears in fewer bits; the text stays the same.")  # fmt: skip
@click.option("--table-quant", type=click.Choice(QUANTS), default="none", show_default=True,
              help="Multiply with the target's output table in fewer bits; changes the "
                   "text.")  # fmt: skip
@click.option("--check-only", is_flag=True,
              help="Check the graphs, CUDA's unless --backend says otherwise; lower and write "
                   "nothing.")  # fmt: skip
@click.option("--tap-layers", metavar="A,B,C",
              help="Boundaries that the head taps, whatever its config.json says.")  # fmt: skip
@click.option("--describe-draft", type=click.Path(path_type=Path), metavar="DIR",
              help="Show how a draft head is understood and exit; a target helps.")  # fmt: skip
@click.option("--describe-target", type=click.Path(path_type=Path), metavar="DIR|FILE.gguf",
              help="Show what a target's checkpoint holds and exit.")  # fmt: skip
@click.option("--self-test", is_flag=True,
              help="Rank the readings of the head by how they draft and exit. An export does this "
                   "too, but for a target of more than 10^9 parameters without a GPU.")  # fmt: skip
@click.option("--no-self-test", is_flag=True, help="Export without it.")
@click.option("--self-test-prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="Its prompts, as eagle-run --prompts-jsonl takes them; 24 tokens of each answer "
                   "are decoded.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Processes that lower methods for CUDA at the same time; XNNPACK's are lowered "
                   "by one.")  # fmt: skip
@click.option("--gpu-memory", type=click.FloatRange(min=0, min_open=True), metavar="GIB",
              help="What they and this process may take of the GPU together, each with its CUDA "
                   "context, as far as one method can.  "
                   "[default: what is free]")  # fmt: skip
@click.option("--reproduce", type=click.Path(path_type=Path), metavar="manifest.json",
              help="Repeat a recorded export and say what differs.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="What is shown as one JSON object.")  # fmt: skip
@click.option("--list-targets", is_flag=True, help="Show the known targets and exit.")
def main(**options: Any) -> None:
    """Export a target model, with a draft head or alone, to one ExecuTorch program."""
    if options["backend"] == "auto" and options["cpu_weights"] != "float32":
        options["backend"] = "xnnpack"  # which they are for
    asked = Asked(**options)
    if not (asked.list_targets or asked.reproduce):
        check_usage(asked)
    mode = next((mode for name, mode in MODES.items() if getattr(asked, name)), export)
    with ended_by_sigterm():
        mode(asked)


def check_usage(asked: Asked) -> None:
    """Refuse options that say nothing together."""
    described = asked.describe_draft or asked.describe_target
    if asked.as_json and described is None and not asked.self_test:
        raise click.UsageError(
            "--json goes with --describe-draft, --describe-target, --list-targets, --self-test and "
            "--reproduce"
        )
    if asked.no_self_test and (asked.self_test or asked.self_test_prompts is not None):
        raise click.UsageError("--no-self-test leaves nothing for --self-test options to say")
    if asked.gpu_memory is not None and asked.jobs == 1:
        raise click.UsageError("--gpu-memory is shared by processes: it goes with --jobs")
    if asked.table_quant != "none" and asked.cpu_weights != "float32":
        raise click.UsageError(
            f"--table-quant {asked.table_quant}: --cpu-weights {asked.cpu_weights} makes the "
            "output table INT8 already: leave one of them out"
        )


def export(asked: Asked) -> None:
    """Write an artifact; say where it is and how large, and what it holds in more bits."""
    started = time.perf_counter()
    from eagle_aot.export import run_export
    from eagle_aot.export.loading.describe_target import tell_dense
    from eagle_aot.export.lowering.backend import DTYPES, choose_backend, untried

    source, options = asked.source, asked.options
    options.progress.since(started, "begin")
    backend = choose_backend(asked.backend)
    output_dir = asked.output_dir or Path(f"{source.target_model}-{backend}")
    tell_drafter(source, asked)
    if line := untried(backend):
        click.echo(line, err=True)
    manifest = run_export(source, output_dir, options)
    tell_dense(source, DTYPES[backend])
    size = sum(path.stat().st_size for path in output_dir.iterdir()) / 1e6
    click.echo(
        f"{output_dir}{os.sep}: {size:.1f} MB, backend {backend}, drafter {manifest.drafter}, "
        f"load format {asked.load_format}"
    )
    tell_caches(manifest)


def tell_caches(manifest: Manifest) -> None:
    """Say what a sequence costs, and how many fit beside the weights in what is free here."""
    import torch

    from eagle_aot.common.device_memory import free_bytes

    caches = CacheBytes.of(manifest)
    assert caches is not None, "an export tells"
    if on_gpu := manifest.backend == "cuda":
        torch.cuda.empty_cache()  # which ends with this process
    free = free_bytes(torch.device("cuda" if on_gpu else "cpu"))
    weights = sum(manifest.files[n].bytes for n in (PROGRAM, WEIGHTS) if n in manifest.files)
    fitting = "" if free is None else f", {caches.fitting(free - weights):,} would fit here"
    click.echo(f"{caches}{fitting}")


def tell_drafter(source: "Source", asked: Asked) -> None:
    """Say on stderr, before the work, that there is no head where nobody asked for that."""
    if not source.has_head and asked.drafter != source.drafter:
        name = source.target_model
        line = f"{name}: no draft head, so {source.drafter} will draft; --draft-dir names a head"
        click.echo(line, err=True)


def check_only(asked: Asked) -> None:
    """One line per method whose graph keeps the contract."""
    from eagle_aot.export import run_check

    source = asked.source
    tell_drafter(source, asked)
    for name, program in run_check(source, asked.options).items():
        click.echo(f"{name}: {len(program.graph.nodes)} nodes, graph contract holds")


def show_self_test(asked: Asked) -> None:
    """The ranking and the finding; a warning is what was asked for, so it is a failure here."""
    from eagle_aot.export.pipeline import run_self_test

    verdict = run_self_test(asked.source, asked.options)
    if asked.as_json:
        click.echo(json.dumps(verdict.to_json(), allow_nan=False))
    else:
        console = Console(stderr=True)
        verdict.show(console)
        if not verdict.is_warning:
            verdict.announce(console)
    if verdict.is_warning:
        raise PairingError(f"self-test: {verdict.message}")


def print_targets(asked: Asked) -> None:
    """One line per target: name and what it is; or the same as one object."""
    from eagle_aot.targets import TARGETS

    if asked.as_json:
        click.echo(json.dumps({name: spec.summary for name, spec in TARGETS.items()}))
        return
    for name, spec in TARGETS.items():
        click.echo(f"{name:<16} {spec.summary}")


def print_reproduction(asked: Asked) -> None:
    """Repeat an export with all its options; say where, and what differs."""
    from eagle_aot.export.reproduce import reproduce

    assert asked.reproduce is not None
    if others := given_options(but=BESIDE_REPRODUCE):
        raise click.UsageError(
            f"--reproduce takes its options from the manifest: leave out {others[0]}"
        )
    directories = asked.target_dir, asked.draft_dir, asked.output_dir
    place, found = reproduce(asked.reproduce, main, *directories)
    if asked.as_json:
        click.echo(json.dumps({"output_dir": str(place), **found.to_json()}))
        return
    verdict = "every file is the same, bit for bit" if found.identical else "not the same"
    click.echo("\n".join([*found.report(), f"{place}{os.sep}: {verdict}"]))


def print_draft(asked: Asked) -> None:
    """How a drafter's checkpoint is understood, for a reader or for a program."""
    from eagle_aot.export.drafters.files import HeadCheckpoint
    from eagle_aot.export.drafters.registry import HEADS, name_of_kind
    from eagle_aot.export.drafters.report_lines import line
    from eagle_aot.export.drafters.target_facts import TargetFacts

    assert asked.describe_draft is not None
    target = TargetFacts.find(asked.target_dir, asked.target_model)
    taps, checkpoint = asked.taps, HeadCheckpoint(asked.describe_draft)
    name = name_of_kind(checkpoint)
    description = HEADS[name].describe(checkpoint, target, taps)
    if asked.as_json:
        click.echo(json.dumps({"drafter": name} | description))
    else:
        click.echo("\n".join([line("drafter", name), *HEADS[name].report(description)]))


def print_target(asked: Asked) -> None:
    """What a target's checkpoint holds, for a reader or for a program."""
    from eagle_aot.export.loading.describe_target import describe_target, report

    assert asked.describe_target is not None
    description = describe_target(asked.describe_target)
    lines = json.dumps(description) if asked.as_json else "\n".join(report(description))
    click.echo(lines)


MODES: dict[str, Callable[[Asked], None]] = {
    "list_targets": print_targets,
    "reproduce": print_reproduction,
    "describe_draft": print_draft,
    "describe_target": print_target,
    "self_test": show_self_test,
    "check_only": check_only,
}
"""What is done instead of an export where an option of that name is given; the first one wins."""
