"""What compilers raise, as a failure that is stated."""

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
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExportError(f"{what}: {shortage(error) or first_line}") from error
