"""`eagle-export --reproduce`: the same export once more."""

from pathlib import Path
from typing import Any

import click

from eagle_aot.artifact import (
    PROCESSOR_FILES,
    TOKENIZER_FILES,
    Manifest,
    file_records,
)
from eagle_aot.common.errors import ArtifactError, CheckpointError, SettingError
from eagle_aot.export.differences import (
    SAME,
    Reproduction,
    compare,
    compare_artifacts,
    environment,
    told,
)
from eagle_aot.export.drafters.taps import parse_tap_layers
from eagle_aot.export.loading.source import Source
from eagle_aot.export.options import EXPORT_OPTIONS, SOURCE_OPTIONS, ExportOptions, command_line
from eagle_aot.export.pipeline import run_export


def read_recorded(path: Path) -> Manifest:
    """The manifest in a file, or in the directory of an artifact. Raises ArtifactError."""
    if not path.exists():
        raise ArtifactError(f"--reproduce {path}: no such manifest or artifact")
    return Manifest.read(path) if path.is_dir() else Manifest.read_file(path)


def reproduce(
    path: Path,
    command: click.Command,
    target_dir: Path | None,
    draft_dir: Path | None,
    output_dir: Path | None,
) -> tuple[Path, Reproduction]:
    """Repeat the export that a manifest records; where it was written, and what differs.

    `command` is `eagle-export`, which knows what options may be. Directories are None for a shipped
    target, and for the default place. Versions that differ are reported on stderr before the work.
    Raises CheckpointError for a checkpoint that is not the recorded one, and what an export raises.
    """
    manifest = read_recorded(path)
    asked = recorded_arguments(manifest, command, path)
    options = ExportOptions(**{name: asked[name] for name in asked if name not in SOURCE_OPTIONS})
    told_to_source = {name: asked[name] for name in asked if name in SOURCE_OPTIONS}
    told_to_source |= {"target_dir": target_dir, "draft_dir": draft_dir}
    source = Source.find(**told_to_source)
    place = output_dir or Path(f"{source.target_model}-{options.backend}-reproduced")
    check_place(path, place)
    with options.progress.stage("compare checkpoints"):
        check_checkpoints(manifest, source)
    for line in told(environment(manifest)):
        click.echo(line, err=True)
    made = run_export(source, place, options)
    return place, compare_artifacts(manifest, made)


def recorded_arguments(manifest: Manifest, command: click.Command, where: Path) -> dict[str, Any]:
    """Fields of `Source` and `ExportOptions` as they were recorded.

    Read as a command line is, so that a manifest can ask for nothing that a user could not. Raises
    ArtifactError for options that are missing, unknown or out of range.
    """
    if set(manifest.options) != set(SOURCE_OPTIONS) | set(EXPORT_OPTIONS):
        raise ArtifactError(f"{where}: its options are not those of this version's exports")
    try:
        context = command.make_context("eagle-export", command_line(manifest.options))
    except click.UsageError as error:
        raise ArtifactError(f"{where}: recorded options: {error.format_message()}") from error
    found = {name: context.params[name] for name in manifest.options}
    return found | {"tap_layers": parse_tap_layers(found["tap_layers"])}


def check_checkpoints(manifest: Manifest, source: Source) -> None:
    """Raise CheckpointError unless target, drafter, tokenizer and image processor are the recorded
    ones, by hash."""
    if source.is_dummy:
        return
    provenance, kept = source.provenance, manifest.files
    beside = {name: kept[name] for name in (*TOKENIZER_FILES, *PROCESSOR_FILES) if name in kept}
    processor = provenance.processor_file if manifest.images is not None else None
    found_beside = [*provenance.tokenizer_files, *([processor] if processor else [])]
    for flag, directory, recorded, found in (
        ("--target-dir", source.target_dir, manifest.target.files, provenance.target.files),
        ("--draft-dir", source.draft_dir, manifest.draft.files, provenance.draft.files),
        ("--target-dir", source.target_dir, beside, file_records(found_beside)),
    ):
        states = compare(recorded, found)
        changed = [f"{name} is {state}" for name, state in states.items() if state != SAME]
        if changed:
            raise CheckpointError(
                f"{flag} {directory}: not the recorded checkpoint: {', '.join(changed[:5])}: "
                "name the directory of that one, or export without --reproduce"
            )


def check_place(recorded: Path, output_dir: Path) -> None:
    """Raise SettingError where the repeated export would replace the one that it repeats."""
    directory = recorded if recorded.is_dir() else recorded.parent
    if output_dir.resolve() == directory.resolve():
        raise SettingError(f"--output-dir {output_dir}: holds what is reproduced: name another")
