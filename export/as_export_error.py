"""Errors of compilers as one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from eagle_aot.common.errors import EagleError, ExportError
from eagle_aot.common.memory import shortage


@contextmanager
def as_export_error(failure: str) -> Iterator[None]:
    """Raise an ExportError, whose line begins with `failure`, for any exception of a compiler.

    Compilers' exceptions have no common base.
    """
    try:
        yield
    except EagleError:
        raise
    except Exception as error:
        raise ExportError(f"{failure}: {shortage(error) or in_one_line(error)}") from error


WRONG = re.compile(r"error|multiple definition|undefined reference", re.IGNORECASE)
"""Matches a line in which a compiler or linker says what is wrong."""


def in_one_line(error: Exception) -> str:
    """Return the message's first line, with the line that matters of a report that follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Output:" in lines:  # of a compiler, after its command
        return f"{lines[0]}: {_complaint(lines[lines.index('Output:') + 1 :])}"
    if not lines[0].endswith(":"):
        return lines[0]
    items = [line for line in lines if line.startswith("- ")]
    return " ".join((lines[0], *(items or lines[1:][-1:])))


def _complaint(output: list[str]) -> str:
    """Return the first line that says what is wrong, otherwise the last one.

    The lines of collect2, a linker's driver, only say that something is.
    """
    lines = [line for line in output if not line.startswith("collect2:")] or output or ["no output"]
    return next(filter(WRONG.search, lines), lines[-1])
