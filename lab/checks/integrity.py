"""`eagle-check --verify`: is an artifact what its manifest says, and what does that say?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_aot import __version__
from eagle_aot.artifact import Manifest
from eagle_aot.artifact.manifest import installed_versions
from eagle_aot.artifact.outline import outline_fields, outline_origin, row
from eagle_aot.common.errors import ArtifactError, EagleError, UnsupportedError

OK = "ok"
PORTABLE = "xnnpack"
"""The backend whose artifacts hold no native code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Integrity:
    """The state of an artifact's files, found without loading native code.

    `problems` maps a file's name to what is wrong with it; `misfit` says why this machine cannot
    run the artifact.
    """

    directory: Path
    manifest: Manifest
    problems: dict[str, str]
    misfit: str | None
    versions: dict[str, str]

    def raise_first(self) -> None:
        """Raise ArtifactError for a changed artifact, UnsupportedError for another machine's."""
        for problem in self.problems.values():
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise ArtifactError(f"{problem}{more}: export again")
        if self.misfit is not None:
            raise UnsupportedError(self.misfit)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one object: the manifest, and how this machine compares."""
        return {
            "intact": not self.problems,
            "runs_here": self.misfit is None,
            "problems": [*self.problems.values(), *([self.misfit] if self.misfit else [])],
            "status": self.statuses(),
            "installed": {"eagle_aot": __version__, **self.versions},
            "must_match": must_match(self.manifest),
            "manifest": self.manifest.to_json(),
        }

    def statuses(self) -> dict[str, str]:
        """Map every file, listed or not, to `ok` or to what is wrong with it."""
        names = dict.fromkeys((*self.manifest.files, *self.problems))
        prefix = f"{self.directory}/"
        texts = {name: self.problems.get(name, OK) for name in names}
        return {
            name: text.removeprefix(f"{prefix}{name}: ").removeprefix(prefix)
            for name, text in texts.items()
        }


def check_integrity(directory: Path) -> Integrity:
    """Read, hash and compare. Raises ArtifactError where there is no manifest."""
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: no such artifact directory")
    manifest = Manifest.read(directory)
    return Integrity(
        directory=directory,
        manifest=manifest,
        problems=manifest.problems(directory),
        misfit=misfit(directory, manifest),
        versions=installed_versions(),
    )


def misfit(directory: Path, manifest: Manifest) -> str | None:
    """Return why this machine cannot run the artifact, None where it can."""
    if manifest.backend == PORTABLE:
        return None
    from eagle_aot.runtime_runner.program.aoti import check_machine
    from eagle_aot.runtime_runner.program.executor import EXECUTORS  # imports torch

    if manifest.backend not in EXECUTORS:
        return (
            f"{directory}: backend {manifest.backend!r}: this version runs {', '.join(EXECUTORS)}"
        )
    try:
        check_machine(directory, manifest)
    except EagleError as error:
        return str(error)
    return None


def must_match(manifest: Manifest) -> list[str]:
    """Return packages whose minor version must be the recorded one: native code is bound to it."""
    return [] if manifest.backend == PORTABLE else ["torch"]


def report(integrity: Integrity) -> Iterator[str]:
    """Yield the same as lines of text."""
    manifest = integrity.manifest
    yield from outline_origin(manifest)
    yield "files"
    for name, status in integrity.statuses().items():
        size = manifest.files[name].bytes if name in manifest.files else ""
        yield row(f"  {name}", f"{size:>14}  {status}")
    yield row("versions", f"{'recorded':<16}{'here':<16}")
    for name, recorded in manifest.versions.items():
        yield row(f"  {name}", version_row(name, recorded, integrity))
    yield from outline_fields(manifest)


def version_row(name: str, recorded: str, integrity: Integrity) -> str:
    """Return the recorded and the installed version, and whether a difference matters."""
    here = integrity.versions.get(name, "unknown")
    if here == recorded:
        return f"{recorded:<16}{here:<16}same"
    bound = name in must_match(integrity.manifest)
    return (
        f"{recorded:<16}{here:<16}{'differs: must be of one minor version' if bound else 'differs'}"
    )
