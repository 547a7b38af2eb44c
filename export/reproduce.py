"""`eagle-export --reproduce`: repeat a recorded export and compare the two manifests."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from eagle_aot import __version__
from eagle_aot.artifact import (
    PROCESSOR_FILES,
    TOKENIZER_FILES,
    CheckpointIdentity,
    FileRecord,
    Manifest,
    file_records,
)
from eagle_aot.artifact.manifest import installed_versions
from eagle_aot.common.errors import ArtifactError, CheckpointError, SettingError
from eagle_aot.common.hub import Repository
from eagle_aot.common.spec import spec_fields
from eagle_aot.common.structs import convert
from eagle_aot.common.text import printable
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints, target_name
from eagle_aot.export.loading.locate import local_checkpoint
from eagle_aot.export.pipeline import export
from eagle_aot.export.resolution import resolve
from eagle_aot.export.spec import ExportSpec
from eagle_aot.targets import get_target

SAME, DIFFERENT, MISSING, NEW = "same", "different", "missing", "new"
COMPARED = (
    *("backend", "device", "drafter", "options", "decisions"),
    *("constants", "methods", "shapes", "caches"),
)
"""Fields that agree in the manifests of equal artifacts."""

Differences = dict[str, tuple[Any, Any]]
"""The recorded and the new value of everything that differs, by dotted name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """The result of a repeated export.

    `files` has a state for each file of either artifact: "same" means bit for bit. `environment`
    has the differences of versions and of the device, `decisions` all others.
    """

    files: dict[str, str]
    environment: Differences
    decisions: Differences

    @property
    def identical(self) -> bool:
        """Whether every file is the same, bit for bit."""
        return set(self.files.values()) == {SAME}

    def to_json(self) -> dict[str, Any]:
        return {"identical": self.identical, **asdict(self)}

    def report(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        for name, state in self.files.items():
            yield f"{name:<24} {state}"
        yield from difference_lines(self.environment | self.decisions)


def environment(manifest: Manifest) -> Differences:
    """Return the installed versions that are not the recorded ones."""
    recorded = {"eagle-aot": manifest.eagle_aot_version, **manifest.versions}
    return differences(recorded, {"eagle-aot": __version__, **installed_versions()})


def compare_artifacts(recorded: Manifest, made: Manifest) -> Reproduction:
    """Compare the manifests of two exports."""
    old, new = recorded.to_json(), made.to_json()
    decided: Differences = {}
    for name in COMPARED:
        decided |= differences(old.get(name), new.get(name), name=name)
    device = {name: values for name, values in decided.items() if name.startswith("device")}
    return Reproduction(
        files=compare(recorded.files, made.files),
        environment=environment(recorded) | device,
        decisions={name: values for name, values in decided.items() if name not in device},
    )


def compare(recorded: Mapping[str, FileRecord], made: Mapping[str, FileRecord]) -> dict[str, str]:
    """Return a state for every file of either."""

    def state(name: str) -> str:
        if name not in recorded:
            return NEW
        if name not in made:
            return MISSING
        return SAME if recorded[name] == made[name] else DIFFERENT

    return {name: state(name) for name in sorted({*recorded, *made})}


def differences(recorded: Any, made: Any, *, name: str = "") -> Differences:
    """Return where two JSON values differ, by dotted names; a missing value is None."""
    if not isinstance(recorded, dict) or not isinstance(made, dict):
        return {} if recorded == made else {name: (recorded, made)}
    differing: Differences = {}
    for key in dict.fromkeys((*recorded, *made)):
        inner = f"{name}.{key}" if name else key
        differing |= differences(recorded.get(key), made.get(key), name=inner)
    return differing


def difference_lines(differing: Differences) -> Iterator[str]:
    """Yield differences as lines of text."""
    for name, (recorded, here) in differing.items():
        yield printable(f"{name:<24} recorded {recorded}, here {here}")


def read_recorded(path: Path) -> Manifest:
    """Read a manifest from a file or from an artifact's directory. Raises ArtifactError."""
    if not path.exists():
        raise ArtifactError(f"--reproduce {path}: no such manifest or artifact")
    return Manifest.read(path) if path.is_dir() else Manifest.read_file(path)


def reproduce(spec: ExportSpec) -> tuple[Path, Reproduction]:
    """Repeat the export that the manifest `spec.reproduce` records; return its directory and what
    differs.

    Of `spec` only the directories are used; recorded commits of repositories are downloaded for
    those that it does not name. Versions that differ are printed on stderr before the
    work. Raises CheckpointError for a checkpoint that is not the recorded one, and what an export
    raises.
    """
    assert spec.reproduce is not None
    manifest = read_recorded(spec.reproduce)
    again = recorded_spec(manifest, spec.reproduce)
    output_dir = spec.output_dir or Path(f"{again.target_model}-{again.backend}-reproduced")
    check_output_dir(spec.reproduce, output_dir)
    shipped = get_target(target_name(again))
    target_dir = recorded_dir("--target-dir", spec.target_dir, manifest.target, shipped.target_dir)
    draft_dir = recorded_dir("--draft-dir", spec.draft_dir, manifest.draft, shipped.draft_dir)
    again = replace(again, output_dir=output_dir, target_dir=target_dir, draft_dir=draft_dir)
    resolved = resolve(again)
    with resolved.progress.stage("compare checkpoints"):
        check_checkpoints(manifest, resolved.checkpoints)
    for line in difference_lines(environment(manifest)):
        click.echo(line, err=True)
    return output_dir, compare_artifacts(manifest, export(resolved))


def recorded_dir(
    flag: str, requested: Path | None, recorded: CheckpointIdentity, shipped: Path | None
) -> Path | None:
    """Return the directory of a recorded checkpoint: the requested one, or the recorded commit of a
    repository, downloaded if need be; None for random weights and a checkpoint that ships.

    Raises SettingError if only the user can know it, and HubError.
    """
    if requested is not None or recorded.directory is None:
        return requested
    if recorded.commit is None and shipped is None:
        raise SettingError(f"{flag} is needed: the recorded checkpoint is {recorded.directory}")
    repository = Repository.parse(recorded.directory)
    if recorded.commit is None or repository is None:
        return None
    return local_checkpoint(str(Repository(repository.id, recorded.commit, repository.file)))


def recorded_spec(manifest: Manifest, path: Path) -> ExportSpec:
    """Return the recorded options, which have no directories; an option that is newer than the
    export has its default. Raises ArtifactError for options that are unknown or out of range."""
    names = {field.name for field in spec_fields(ExportSpec) if field.option.recorded}
    if not set(manifest.options) <= names:
        raise ArtifactError(f"{path}: its options are not those of this version's exports")
    try:
        return convert(manifest.options, ExportSpec)
    except (msgspec.ValidationError, SettingError) as error:
        raise ArtifactError(f"{path}: recorded options: {error}") from error


def check_checkpoints(manifest: Manifest, checkpoints: ResolvedCheckpoints) -> None:
    """Raise CheckpointError unless target, drafter, tokenizer and image processor have the recorded
    hashes."""
    spec, provenance = checkpoints.spec, checkpoints.provenance
    if spec.is_dummy:
        return
    names = [name for name in (*TOKENIZER_FILES, *PROCESSOR_FILES) if name in manifest.files]
    side_files = {name: manifest.files[name] for name in names}
    processor = provenance.processor_file if manifest.images is not None else None
    side_paths = [*provenance.tokenizer_files, *([processor] if processor else [])]
    for flag, directory, recorded, present in (
        ("--target-dir", spec.target_dir, manifest.target.files, provenance.target.files),
        ("--draft-dir", spec.draft_dir, manifest.draft.files, provenance.draft.files),
        ("--target-dir", spec.target_dir, side_files, file_records(side_paths)),
    ):
        states = compare(recorded, present)
        changed = [f"{name} is {state}" for name, state in states.items() if state != SAME]
        if changed:
            raise CheckpointError(
                f"{flag} {directory}: not the recorded checkpoint: {', '.join(changed[:5])}: "
                "name the directory of that one, or export without --reproduce"
            )


def check_output_dir(recorded: Path, output_dir: Path) -> None:
    """Raise SettingError if the repeated export would replace the recorded one."""
    directory = recorded if recorded.is_dir() else recorded.parent
    if output_dir.resolve() == directory.resolve():
        raise SettingError(f"--output-dir {output_dir}: holds what is reproduced: name another")
