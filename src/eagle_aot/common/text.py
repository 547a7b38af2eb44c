"""Text for a terminal, which may come from files that are not trusted."""

import difflib
from collections.abc import Iterable

LONGEST_LINE = 800
"""Characters of a line, which may quote a file with any content."""


def printable(text: str) -> str:
    """Return `text` with U+FFFD in place of line ends and control characters, which a terminal
    would execute instead of show."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def one_line(text: str) -> str:
    """Return `text` without line ends and escape sequences. A long one is cut in the middle: its
    end says what to do."""
    line = printable(" ".join(text.split()))
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean NAME?` with the most similar of `names`, empty if none is similar."""
    near = difflib.get_close_matches(name.lower(), list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def gigabytes(count: int) -> str:
    """Return a number of bytes in GB, or in MB below one GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
