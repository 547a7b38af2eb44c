"""`eagle-inspect`: describes targets, draft heads and artifacts without exporting."""

import json
from pathlib import Path
from typing import Annotated

import click
import msgspec
from rich.console import Console

from eagle_aot import __version__
from eagle_aot.artifact import MANIFEST, Manifest
from eagle_aot.artifact.locate import local_artifact
from eagle_aot.artifact.outline import outline_manifest
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import PairingError
from eagle_aot.common.process import ended_by_sigterm
from eagle_aot.common.spec import Option, check_fields, spec_command
from eagle_aot.export.spec import AUTO, Backend, ExportSpec

PATH = click.Path(path_type=Path)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eagle-aot")
def main() -> None:
    """Describe targets, draft heads and artifacts without exporting.

    \b
        eagle-inspect targets
        eagle-inspect target smollm2
        eagle-inspect draft gemma4-tiny
        eagle-inspect artifact gemma4-tiny-xnnpack
    """


@as_json_option
@eagle_command
def targets(as_json: bool) -> None:
    """List the known targets."""
    from eagle_aot.targets import TARGETS

    if as_json:
        click.echo(json.dumps({name: target.summary for name, target in TARGETS.items()}))
        return
    for name, target in TARGETS.items():
        click.echo(f"{name:<18} {target.summary}")


@click.argument("directory", metavar="DIR|FILE.gguf|ORG/NAME", type=PATH)
@as_json_option
@eagle_command
def target(directory: Path, as_json: bool) -> None:
    """Describe the checkpoint of a target: sizes, formats and tokenizer."""
    from eagle_aot.export.loading.describe_target import describe_target, report
    from eagle_aot.export.loading.locate import local_checkpoint

    description = describe_target(local_checkpoint(directory))
    click.echo(json.dumps(description) if as_json else "\n".join(report(description)))


class DraftSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Which draft head to describe or test, and with which target."""

    directory: Path
    target_dir: Annotated[Path | None, Option(
        "The target's checkpoint.", metavar="DIR|FILE.gguf")] = None  # fmt: skip
    target_model: Annotated[str | None, Option(
        "A target that eagle-inspect targets lists.", metavar="NAME")] = None  # fmt: skip
    tap_layers: Annotated[tuple[int, ...] | None, Option(
        "Layers whose hidden states the head reads, counted as layers already applied.",
        metavar="A,B,C", commas=True)] = None  # fmt: skip
    backend: Annotated[Backend, Option(
        "The backend whose arithmetic --self-test uses. "
        "auto: cuda where there is a GPU.")] = "auto"  # fmt: skip
    self_test: Annotated[bool, Option(
        "Load the pair and rank the readings of the head by how well they draft. An export does "
        "this, too, except for a target of more than 10^9 "
        "parameters without a GPU.")] = False  # fmt: skip
    self_test_prompts: Annotated[Path | None, Option(
        "Prompts of --self-test, as eagle-run --prompts-jsonl takes them; 24 tokens of each "
        "answer are decoded.", metavar="FILE.jsonl")] = None  # fmt: skip
    as_json: Annotated[bool, Option("Print one JSON object.", flag="--json")] = False

    def __post_init__(self) -> None:
        check_fields(self)


@spec_command(DraftSpec)
def draft(spec: DraftSpec) -> None:
    """Describe how a draft head's files are read, and why.

    DIRECTORY is the head's checkpoint, a repository, ORG/NAME, or the name of a target that a head
    is registered for. With
    --self-test, measure the head with its target.
    """
    spec = with_directory(spec)
    if spec.self_test:
        with ended_by_sigterm():
            rank_readings(spec)
    elif spec.self_test_prompts is not None:
        raise click.UsageError("--self-test-prompts goes with --self-test")
    else:
        describe_draft(spec)


def with_directory(spec: DraftSpec) -> DraftSpec:
    """Replace the name of a target by the directory of its head, and a repository by its own."""
    from eagle_aot.export.loading.locate import local_checkpoint
    from eagle_aot.targets import TARGETS

    line = TARGETS.get(str(spec.directory))
    if line is None or spec.directory.is_dir():
        return msgspec.structs.replace(spec, directory=local_checkpoint(spec.directory))
    head = line.draft_dir or next(iter(line.heads.values()), spec.directory)
    name = spec.target_model or line.name
    return msgspec.structs.replace(spec, directory=local_checkpoint(head), target_model=name)


def describe_draft(spec: DraftSpec) -> None:
    """Print how a head's files are read; nothing is loaded."""
    from eagle_aot.export.drafters.description import line, report
    from eagle_aot.export.drafters.registry import HEADS, name_of_kind
    from eagle_aot.export.drafters.target_facts import TargetFacts
    from eagle_aot.export.spec import checked_tap_layers
    from eagle_aot.targets.checkpoint import Checkpoint

    taps = None if spec.tap_layers is None else checked_tap_layers(spec.tap_layers)
    facts = TargetFacts.find(spec.target_dir, spec.target_model)
    checkpoint = Checkpoint(spec.directory)
    name = name_of_kind(checkpoint)
    description = HEADS[name].describe(checkpoint, facts, taps)
    if spec.as_json:
        click.echo(json.dumps({"drafter": name} | description))
    else:
        click.echo("\n".join([line("drafter", name), *report(description)]))


def rank_readings(spec: DraftSpec) -> None:
    """Print the self-test's ranking and verdict. Raises PairingError for a warning."""
    from eagle_aot.export.pipeline import run_self_test

    verdict = run_self_test(
        ExportSpec(
            target_model=spec.target_model or AUTO,
            target_dir=spec.target_dir,
            draft_dir=spec.directory,
            backend=spec.backend,
            tap_layers=spec.tap_layers,
            self_test_prompts=spec.self_test_prompts,
        )
    )
    console = Console(stderr=True)
    if spec.as_json:
        click.echo(json.dumps(verdict.to_json(), allow_nan=False))
    else:
        verdict.show(console)
    if verdict.is_warning:
        raise PairingError(f"self-test: {verdict.message}")
    if not spec.as_json:
        verdict.announce(console)


@click.argument("directory", metavar="DIR|ORG/NAME", type=PATH)
@as_json_option
@eagle_command
def artifact(directory: Path, as_json: bool) -> None:
    """Show an artifact's manifest: its origin, options, decisions and self-test.

    eagle-check --verify shows it, too, and compares every file with it.
    """
    manifest = Manifest.read(local_artifact(directory, (MANIFEST,)))
    click.echo(json.dumps(manifest.to_json()) if as_json else "\n".join(outline_manifest(manifest)))


for command in (targets, target, draft, artifact):
    main.add_command(command)
