"""Compare two exports by their manifests: which files and which decisions are the same."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from eagle_aot import __version__
from eagle_aot.artifact import FileRecord, Manifest
from eagle_aot.artifact.versions import installed_versions
from eagle_aot.common.text import printable

SAME, DIFFERENT, MISSING, NEW = "same", "different", "missing", "new"
COMPARED = (
    *("backend", "device", "drafter", "options", "decisions"),
    *("constants", "methods", "shapes", "caches"),
)
"""Fields of two manifests that agree where the artifacts are equal."""

Differences = dict[str, tuple[Any, Any]]
"""The recorded and the present value of everything that differs, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """The result of a repeated export.

    `files` says for each file of both artifacts whether it is the same bit for bit; `environment`
    has differences of versions and the device, `decisions` all others.
    """

    files: dict[str, str]
    environment: Differences
    decisions: Differences

    @property
    def identical(self) -> bool:
        """Whether every file is the same, bit for bit."""
        return set(self.files.values()) == {SAME}

    def to_json(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
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
    decided = differences(compared(recorded), compared(made))
    device = {name: pair for name, pair in decided.items() if name.startswith("device")}
    return Reproduction(
        files=compare(recorded.files, made.files),
        environment=environment(recorded) | device,
        decisions={name: pair for name, pair in decided.items() if name not in device},
    )


def compared(manifest: Manifest) -> dict[str, Any]:
    """Return the fields that must agree."""
    stored = manifest.to_json()
    return {name: stored[name] for name in COMPARED if name in stored}


def compare(recorded: Mapping[str, FileRecord], found: Mapping[str, FileRecord]) -> dict[str, str]:
    """Say for every file of either whether it is the same in both."""

    def state(name: str) -> str:
        if name not in recorded:
            return NEW
        if name not in found:
            return MISSING
        return SAME if recorded[name] == found[name] else DIFFERENT

    return {name: state(name) for name in sorted({*recorded, *found})}


def differences(recorded: Any, found: Any, *, name: str = "") -> Differences:
    """Return where two JSON values differ, by dotted names; a missing value is None."""
    if not isinstance(recorded, dict) or not isinstance(found, dict):
        return {} if recorded == found else {name: (recorded, found)}
    below = [
        differences(recorded.get(key), found.get(key), name=f"{name}.{key}" if name else key)
        for key in dict.fromkeys((*recorded, *found))
    ]
    return {inner: pair for nested in below for inner, pair in nested.items()}


def difference_lines(differing: Differences) -> Iterator[str]:
    """Yield differences as lines of text."""
    for name, (recorded, here) in differing.items():
        yield printable(f"{name:<24} recorded {recorded}, here {here}")
