"""Lines of a description for a reader."""

from typing import Any

from eagle_aot.common.text import printable


def line(topic: str, fact: Any) -> str:
    """A topic and its fact, which may be a value with what decided it."""
    if isinstance(fact, dict):
        fact = f"{plain(fact['value'])} ({fact['source']})"
    return printable(f"{topic:<22}{plain(fact)}")


def plain(value: Any) -> str:
    """A value in words."""
    match value:
        case None:
            return "unknown"
        case bool():
            return "on" if value else "off"
        case list():
            return ",".join(map(str, value))
    return str(value)
