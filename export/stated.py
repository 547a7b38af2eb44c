"""What compilers raise, as a failure that is stated."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from eagle_aot.common.errors import EagleError, ExportError
from eagle_aot.common.memory import shortage


@contextmanager
def stated(what: str) -> Iterator[None]:
    """Turn whatever the compilers raise, which have no common base, into an ExportError."""
    try:
        yield
    except EagleError:
        raise
    except Exception as error:
        raise ExportError(f"{what}: {shortage(error) or in_one_line(error)}") from error


WRONG = re.compile(r"error|multiple definition|undefined reference", re.IGNORECASE)
"""In a line by which a compiler or linker says what is wrong."""


def in_one_line(error: Exception) -> str:
    """The first line of its message, and what a process's report comes to that it announces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Output:" in lines:  # of a compiler, behind its command
        return f"{lines[0]}: {_complaint(lines[lines.index('Output:') + 1 :])}"
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and lines[1:] else lines[0]


def _complaint(said: list[str]) -> str:
    """The first line that says what is wrong, otherwise the last one. That there was something is
    all that a linker's driver says, at the end."""
    lines = [line for line in said if not line.startswith("collect2:")] or said or ["no output"]
    return next(filter(WRONG.search, lines), lines[-1])
