"""Facts on how a head's files were read, as JSON for manifests and as lines of text."""

from collections.abc import Sequence
from typing import Any

from eagle_aot.common.text import printable

Facts = dict[str, Any]
"""JSON, each fact with its source."""

DUMMY_TAPS = "a dummy taps where public heads do"


def reading_facts(
    taps: Sequence[int], source: str, *, layout: Facts | None, head: Facts, flags: Facts
) -> Facts:
    """Return the facts that a manifest records of a head; `source` decided the taps."""
    taps_fact = {"value": list(taps), "source": source}
    return {"taps": taps_fact, "layout": layout, "flags": flags, "head": head}


def report(description: Facts) -> list[str]:
    """Return a head's description as lines of text."""
    lines = []
    for topic, fact in description.items():
        if topic in ("options", "tables"):
            lines += [line(name, inner) for name, inner in fact.items()]
        elif topic == "files":
            lines.append(line(topic, ", ".join(fact)))
        elif topic != "directory":
            lines.append(line(topic, fact))
    return lines


def line(topic: str, fact: Any) -> str:
    """Return a topic and its fact: a value, a value with its source, or several named values."""
    if isinstance(fact, dict):
        source = f" ({fact['source']})" if "source" in fact else ""
        values = {name: value for name, value in fact.items() if name != "source"}
        named = ", ".join(f"{name} {_plain(value)}" for name, value in values.items())
        fact = (_plain(values["value"]) if "value" in values else named) + source
    return printable(f"{topic:<22}{_plain(fact)}")


def _plain(value: Any) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "on" if value else "off"
        case list():
            return ",".join(map(str, value))
    return str(value)
