"""An artifact appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle_aot.artifact import MANIFEST
from eagle_aot.errors import EagleError, ExportError


def check_output_dir(final: Path) -> None:
    """Raise ExportError unless `final` is free, empty, or an artifact that may be replaced."""
    if final.exists() and not final.is_dir():
        raise ExportError(f"{final}: exists and is not a directory: choose another --output-dir")
    if final.is_dir() and any(final.iterdir()) and not (final / MANIFEST).is_file():
        raise ExportError(f"{final}: holds other files: choose another --output-dir")
    parent = next(path for path in final.absolute().parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ExportError(f"{parent}: not a writable directory: choose another --output-dir")


@contextmanager
def appearing(final: Path) -> Iterator[Path]:
    """A directory to write into, which becomes `final` when the block ends well.

    It is a hidden sibling until then, and removed when the block fails. What an export that was
    killed left there is removed by the next one. Raises ExportError when the disk refuses.
    """
    final = final.absolute()
    partial = final.with_name(f".{final.name}.partial-{os.getpid()}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        partial.mkdir()
        yield partial
        _replace(partial, final)
    except EagleError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ExportError(f"{final}: cannot be written: {reason}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, final: Path) -> None:
    replaced = final.with_name(f".{final.name}.replaced-{os.getpid()}")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)


def _remove_abandoned(final: Path) -> None:
    for left in final.parent.glob(f".{final.name}.partial-*"):
        if not _is_running(left.name.rpartition("-")[2]):
            shutil.rmtree(left, ignore_errors=True)


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
        return True
    return True
