"""An artifact that holds several drafters, seen as if it held one of them."""

from msgspec.structs import replace

from eagle_aot.artifact.files import MANIFEST
from eagle_aot.artifact.manifest import DrafterRecord, Manifest
from eagle_aot.artifact.methods import (
    DRAFT_PREFILL,
    DRAFTERS,
    NGRAM,
    constant_methods,
    methods_of,
)
from eagle_aot.common.errors import ArtifactError


def method_of(drafter: str, method: str) -> str:
    """How a program calls a method that one of several drafters brings; one word for any name."""
    return f"{drafter.replace('-', '_')}_{method}"


def drafters_of(manifest: Manifest) -> tuple[str, ...]:
    """The names of those that an artifact holds, the one that drafts unless another is named
    first."""
    records = manifest.drafters
    return (manifest.drafter,) if records is None else tuple(one.name for one in records)


def record_of(manifest: Manifest, drafter: str) -> DrafterRecord | None:
    """What is said of one of several; None where there is one."""
    return next((one for one in manifest.drafters or () if one.name == drafter), None)


def alone(manifest: Manifest, drafter: str) -> Manifest:
    """The manifest as if the artifact held nothing else that drafts. Raises ArtifactError where
    what it says of it cannot be."""
    if (record := record_of(manifest, drafter)) is None:
        return manifest
    width = manifest.constants.get(constant_methods()["hidden_size"])
    if not isinstance(width, int) or record.first_feature + record.features > width:
        raise ArtifactError(f"{MANIFEST}: damaged (features of {drafter!r}): export again")
    names = program_names(manifest, drafter)
    shapes = {own: manifest.shapes[name] for own, name in names.items() if name in manifest.shapes}
    return replace(
        manifest,
        drafter=record.kind,
        draft=record.draft,
        decisions=manifest.decisions | record.facts,
        methods=list(names),
        shapes=shapes,
        self_test=record.self_test,
        drafters=None,
    )


def program_names(manifest: Manifest, drafter: str) -> dict[str, str]:
    """The methods that are needed to draft with one of them, by the name that each has where it
    drafts alone, and how the program calls them; the target's for one that needs none of its own.
    Those of a kind that is not known are left out."""
    if (record := record_of(manifest, drafter)) is None:
        kind = manifest.drafter if manifest.drafters is None else NGRAM
        return {name: name for name in methods_of(kind, manifest.methods)}
    own = [*DRAFTERS.get(record.kind, ()), DRAFT_PREFILL]
    called = {method: method_of(drafter, method) for method in own}
    listed = [*manifest.methods, *(own for own, name in called.items() if name in manifest.methods)]
    return {name: called.get(name, name) for name in methods_of(record.kind, listed)}


def all_program_names(manifest: Manifest) -> dict[str, str]:
    """Of the methods that are needed for all of them, by the names that the program has for
    them."""
    named = [program_names(manifest, drafter).values() for drafter in drafters_of(manifest)]
    return {name: name for names in named for name in names}
