"""A manifest as lines of text for a reader."""

from collections.abc import Iterator
from typing import Any

from eagle_aot import __version__
from eagle_aot.artifact.manifest import Manifest
from eagle_aot.common.text import printable

SHOWN = ("target", "draft", "options", "decisions", "images", "self_test")
"""Fields of a manifest that are shown as they are, where they exist."""


def outline_manifest(manifest: Manifest) -> Iterator[str]:
    """Yield a manifest without its files and versions, which need to be compared."""
    yield from outline_origin(manifest)
    yield from outline_fields(manifest)


def outline_origin(manifest: Manifest) -> Iterator[str]:
    """Yield what made the artifact, and for which machine."""
    yield row("made by", f"eagle-aot {manifest.eagle_aot_version}, this is {__version__}")
    yield row("schema version", str(manifest.schema_version))
    yield row("backend", manifest.backend)
    yield row("compiled for", plain(manifest.to_json()["device"] or "any machine"))
    yield row("drafter", plain(manifest.drafter))


def outline_fields(manifest: Manifest) -> Iterator[str]:
    """Yield the checkpoints, options, decisions and self-test."""
    stored = manifest.to_json()
    for field in SHOWN:
        if field in stored:
            yield from outline(field, stored[field])


def outline(name: str, value: Any, indent: int = 0) -> Iterator[str]:
    """Yield a value of a manifest: one line where it is flat, else indented under its name."""
    left = " " * indent + name
    if not isinstance(value, dict) or is_flat(value):
        yield row(left, plain(value))
        return
    yield plain(left)
    for key, inner in value.items():
        yield from outline(key, inner, indent + 2)


def is_flat(value: dict[str, Any]) -> bool:
    """Return whether it fits a line: plain values, or a value with its source."""
    return set(value) == {"value", "source"} or not any(
        isinstance(item, dict | list) for item in value.values()
    )


def plain(value: Any) -> str:
    """Return a value as text without brackets and without control characters."""
    match value:
        case None:
            text = "-"
        case bool():
            text = "on" if value else "off"
        case {"value": inner, "source": source} if len(value) == 2:
            text = f"{plain(inner)} ({source})"
        case dict():
            text = ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or "-"
        case list() if any(isinstance(item, dict | list) for item in value):
            text = "; ".join(map(plain, value))
        case list():
            text = ",".join(map(plain, value))
        case _:
            text = str(value)
    return printable(text)


def row(name: str, text: str) -> str:
    """Return a line of two columns."""
    return f"{plain(name):<36} {plain(text)}".rstrip()
