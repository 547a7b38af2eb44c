"""`eagle-export --reproduce`: the same export once more, and what is different this time."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from eagle_aot import __version__
from eagle_aot.artifact import TOKENIZER_FILES, FileRecord, Manifest, file_records
from eagle_aot.artifact.versions import installed_versions
from eagle_aot.common.errors import ArtifactError, CheckpointError, SettingError
from eagle_aot.common.text import printable
from eagle_aot.export.drafters.eagle3.reading.taps import parse_tap_layers
from eagle_aot.export.load import DUMMY, Source
from eagle_aot.export.options import (
    EXPORT_OPTIONS,
    SOURCE_OPTIONS,
    ExportOptions,
    command_line,
)
from eagle_aot.export.pipeline import run_export
from eagle_aot.export.publish.describe import checkpoint_records, find_tokenizer

SAME, DIFFERENT, MISSING, NEW = "same", "different", "missing", "new"
COMPARED = (
    *("backend", "device", "drafter", "options", "decisions"),
    *("constants", "methods", "shapes", "caches"),
)
"""Fields of two manifests that must agree for the artifacts to be one another's equal."""

Differences = dict[str, tuple[Any, Any]]
"""What differs: its name, then what is recorded and what is found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """What an export gave when it was repeated.

    `files` says of each file of both artifacts whether it is bit for bit the same; `environment`
    holds versions and the device, `decisions` all else.
    """

    files: dict[str, str]
    environment: Differences
    decisions: Differences

    @property
    def identical(self) -> bool:
        """Whether every file is the same, bit for bit."""
        return set(self.files.values()) == {SAME}

    def to_json(self) -> dict[str, Any]:
        """As one object."""
        return {"identical": self.identical, **asdict(self)}

    def report(self) -> Iterator[str]:
        """As lines for a reader."""
        for name, state in self.files.items():
            yield f"{name:<24} {state}"
        yield from told(self.environment | self.decisions)


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
    target, and for the default place. Versions that differ are told on stderr before the work.
    Raises CheckpointError for a checkpoint that is not the recorded one, and what an export raises.
    """
    manifest = read_recorded(path)
    asked = recorded_arguments(manifest, command, path)
    options = ExportOptions(**{name: asked[name] for name in asked if name not in SOURCE_OPTIONS})
    told_to_source = {name: asked[name] for name in asked if name in SOURCE_OPTIONS}
    source = Source.find(target_dir=target_dir, draft_dir=draft_dir, **told_to_source)
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
    """Raise CheckpointError unless target, head and tokenizer are the recorded ones, by hash."""
    if source.load_format == DUMMY:
        return
    assert source.target_dir is not None and source.draft_dir is not None
    tokenizer = {name: manifest.files[name] for name in TOKENIZER_FILES if name in manifest.files}
    for flag, directory, recorded, found in (
        ("--target-dir", source.target_dir, manifest.target.files, None),
        ("--draft-dir", source.draft_dir, manifest.draft.files, None),
        ("--target-dir", source.target_dir, tokenizer, file_records(find_tokenizer(source))),
    ):
        states = compare(recorded, checkpoint_records(directory) if found is None else found)
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


def environment(manifest: Manifest) -> Differences:
    """Versions that are not the recorded ones."""
    recorded = {"eagle-aot": manifest.eagle_aot_version, **manifest.versions}
    return differences(recorded, {"eagle-aot": __version__, **installed_versions()})


def compare_artifacts(recorded: Manifest, made: Manifest) -> Reproduction:
    """Two exports by their manifests."""
    decided = differences(compared(recorded), compared(made))
    device = {name: pair for name, pair in decided.items() if name.startswith("device")}
    return Reproduction(
        files=compare(recorded.files, made.files),
        environment=environment(recorded) | device,
        decisions={name: pair for name, pair in decided.items() if name not in device},
    )


def compared(manifest: Manifest) -> dict[str, Any]:
    """What must agree."""
    stored = manifest.to_json()
    return {name: stored[name] for name in COMPARED}


def compare(recorded: Mapping[str, FileRecord], found: Mapping[str, FileRecord]) -> dict[str, str]:
    """Of every file in either, whether it is the same in both."""

    def state(name: str) -> str:
        if name not in recorded:
            return NEW
        if name not in found:
            return MISSING
        return SAME if recorded[name] == found[name] else DIFFERENT

    return {name: state(name) for name in sorted({*recorded, *found})}


def differences(recorded: Any, found: Any, *, name: str = "") -> Differences:
    """Where two values of JSON differ, by dotted names; what is missing is None."""
    if not isinstance(recorded, dict) or not isinstance(found, dict):
        return {} if recorded == found else {name: (recorded, found)}
    below = [
        differences(recorded.get(key), found.get(key), name=f"{name}.{key}" if name else key)
        for key in dict.fromkeys((*recorded, *found))
    ]
    return {inner: pair for one in below for inner, pair in one.items()}


def told(found: Differences) -> Iterator[str]:
    """Differences as lines for a reader."""
    for name, (recorded, here) in found.items():
        yield printable(f"{name:<24} recorded {recorded}, here {here}")
