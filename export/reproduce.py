"""`eagle-export --reproduce`: the same export once more."""

from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from eagle_aot.artifact import (
    PROCESSOR_FILES,
    TOKENIZER_FILES,
    Manifest,
    file_records,
)
from eagle_aot.common.errors import ArtifactError, CheckpointError, SettingError
from eagle_aot.common.spec import spec_fields
from eagle_aot.export.differences import (
    SAME,
    Reproduction,
    compare,
    compare_artifacts,
    difference_lines,
    environment,
)
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints
from eagle_aot.export.pipeline import export
from eagle_aot.export.resolution import resolve
from eagle_aot.export.spec import ExportSpec


def read_recorded(path: Path) -> Manifest:
    """The manifest in a file, or in the directory of an artifact. Raises ArtifactError."""
    if not path.exists():
        raise ArtifactError(f"--reproduce {path}: no such manifest or artifact")
    return Manifest.read(path) if path.is_dir() else Manifest.read_file(path)


def reproduce(spec: ExportSpec) -> tuple[Path, Reproduction]:
    """Repeat the export that the manifest `spec.reproduce` records; return its directory and what
    differs.

    `spec` has the directories, None for a shipped target and for the default output directory.
    Versions that differ are printed on stderr before the work. Raises CheckpointError for a
    checkpoint that is not the recorded one, and what an export raises.
    """
    assert spec.reproduce is not None
    manifest = read_recorded(spec.reproduce)
    again = recorded_spec(manifest, spec.reproduce)
    output_dir = spec.output_dir or Path(f"{again.target_model}-{again.backend}-reproduced")
    check_output_dir(spec.reproduce, output_dir)
    directories = {"target_dir": spec.target_dir, "draft_dir": spec.draft_dir}
    resolved = resolve(replace(again, output_dir=output_dir, **directories))
    with resolved.progress.stage("compare checkpoints"):
        check_checkpoints(manifest, resolved.checkpoints)
    for line in difference_lines(environment(manifest)):
        click.echo(line, err=True)
    return output_dir, compare_artifacts(manifest, export(resolved))


def recorded_spec(manifest: Manifest, path: Path) -> ExportSpec:
    """Return the options as they were recorded, without directories.

    Raises ArtifactError for options that are missing, unknown or out of range.
    """
    names = {field.name for field in spec_fields(ExportSpec) if field.option.recorded}
    if set(manifest.options) != names:
        raise ArtifactError(f"{path}: its options are not those of this version's exports")
    try:
        return msgspec.convert(manifest.options, ExportSpec)
    except (msgspec.ValidationError, SettingError) as error:
        raise ArtifactError(f"{path}: recorded options: {error}") from error


def check_checkpoints(manifest: Manifest, checkpoints: ResolvedCheckpoints) -> None:
    """Raise CheckpointError unless target, drafter, tokenizer and image processor are the recorded
    ones, by hash."""
    spec, provenance = checkpoints.spec, checkpoints.provenance
    if spec.is_dummy:
        return
    names = [name for name in (*TOKENIZER_FILES, *PROCESSOR_FILES) if name in manifest.files]
    side_files = {name: manifest.files[name] for name in names}
    processor = provenance.processor_file if manifest.images is not None else None
    side_paths = [*provenance.tokenizer_files, *([processor] if processor else [])]
    for flag, directory, recorded, found in (
        ("--target-dir", spec.target_dir, manifest.target.files, provenance.target.files),
        ("--draft-dir", spec.draft_dir, manifest.draft.files, provenance.draft.files),
        ("--target-dir", spec.target_dir, side_files, file_records(side_paths)),
    ):
        states = compare(recorded, found)
        changed = [f"{name} is {state}" for name, state in states.items() if state != SAME]
        if changed:
            raise CheckpointError(
                f"{flag} {directory}: not the recorded checkpoint: {', '.join(changed[:5])}: "
                "name the directory of that one, or export without --reproduce"
            )


def check_output_dir(recorded: Path, output_dir: Path) -> None:
    """Raise SettingError where the repeated export would replace the recorded one."""
    directory = recorded if recorded.is_dir() else recorded.parent
    if output_dir.resolve() == directory.resolve():
        raise SettingError(f"--output-dir {output_dir}: holds what is reproduced: name another")
