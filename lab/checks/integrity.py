"""`eagle-run --verify`: whether an artifact is what its manifest says, and what that is."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_aot import __version__
from eagle_aot.artifact import Manifest
from eagle_aot.artifact.versions import installed_versions
from eagle_aot.common.errors import ArtifactError, EagleError, UnsupportedError
from eagle_aot.common.text import printable

OK = "ok"
ANYWHERE = "xnnpack"
"""The backend without native code of an artifact's own."""
SHOWN = ("target", "draft", "options", "decisions", "images", "self_test")
"""Fields of a manifest that are told as they are, if they are there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Integrity:
    """What was found: nothing native has been loaded.

    `problems` are the files' by name; `misfit` says why this machine cannot run the artifact.
    """

    directory: Path
    manifest: Manifest
    problems: dict[str, str]
    misfit: str | None
    versions: dict[str, str]

    def raise_first(self) -> None:
        """Raise ArtifactError for a changed artifact, UnsupportedError for one of elsewhere."""
        for problem in self.problems.values():
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise ArtifactError(f"{problem}{more}: export again")
        if self.misfit is not None:
            raise UnsupportedError(self.misfit)

    def to_json(self) -> dict[str, Any]:
        """All of it as one object: the manifest, and beside it what is here."""
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
        """Every file, listed or not: `ok`, or what is wrong with it."""
        names = dict.fromkeys((*self.manifest.files, *self.problems))
        prefix = f"{self.directory}/"
        found = {name: self.problems.get(name, OK) for name in names}
        return {
            name: text.removeprefix(f"{prefix}{name}: ").removeprefix(prefix)
            for name, text in found.items()
        }


def check_integrity(directory: Path) -> Integrity:
    """Read, hash and compare. Raises ArtifactError when there is no manifest to compare with."""
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
    """Why this machine cannot run what the artifact was compiled for, None where it can."""
    if manifest.backend == ANYWHERE:
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
    """Versions on which running depends: native code is bound to a minor version of torch."""
    return [] if manifest.backend == ANYWHERE else ["torch"]


def report(found: Integrity) -> Iterator[str]:
    """The same as lines for a reader."""
    manifest, stored = found.manifest, found.manifest.to_json()
    yield row("made by", f"eagle-aot {manifest.eagle_aot_version}, this is {__version__}")
    yield row("schema version", str(manifest.schema_version))
    yield row("backend", manifest.backend)
    yield row("compiled for", plain(stored["device"] or "any machine"))
    yield row("drafter", plain(manifest.drafter))
    yield "files"
    for name, status in found.statuses().items():
        size = manifest.files[name].bytes if name in manifest.files else ""
        yield row(f"  {name}", f"{size:>14}  {status}")
    yield row("versions", f"{'recorded':<16}{'here':<16}")
    for name, recorded in manifest.versions.items():
        yield row(f"  {name}", version_row(name, recorded, found))
    for what in SHOWN:
        if what in stored:
            yield from outline(what, stored[what])


def version_row(name: str, recorded: str, found: Integrity) -> str:
    """What was used, what is here, and whether a difference matters."""
    here = found.versions.get(name, "unknown")
    if here == recorded:
        return f"{recorded:<16}{here:<16}same"
    bound = name in must_match(found.manifest)
    return (
        f"{recorded:<16}{here:<16}{'differs: must be of one minor version' if bound else 'differs'}"
    )


def outline(name: str, value: Any, indent: int = 0) -> Iterator[str]:
    """A value of a manifest: in one line where it is flat, else indented under its name."""
    left = " " * indent + name
    if not isinstance(value, dict) or is_flat(value):
        yield row(left, plain(value))
        return
    yield plain(left)
    for key, inner in value.items():
        yield from outline(key, inner, indent + 2)


def is_flat(value: dict[str, Any]) -> bool:
    """Whether all of it fits a line: plain values, or a value with what decided it."""
    return set(value) == {"value", "source"} or not any(
        isinstance(one, dict | list) for one in value.values()
    )


def plain(value: Any) -> str:
    """A value without brackets, and without characters that would move a terminal's cursor."""
    match value:
        case None:
            text = "-"
        case bool():
            text = "on" if value else "off"
        case {"value": inner, "source": source} if len(value) == 2:
            text = f"{plain(inner)} ({source})"
        case dict():
            text = ", ".join(f"{key} {plain(one)}" for key, one in value.items()) or "-"
        case list() if any(isinstance(one, dict | list) for one in value):
            text = "; ".join(map(plain, value))
        case list():
            text = ",".join(map(plain, value))
        case _:
            text = str(value)
    return printable(text)


def row(name: str, text: str) -> str:
    """A line of two columns."""
    return f"{plain(name):<36} {plain(text)}".rstrip()
