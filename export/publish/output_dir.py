"""Write an artifact's directory atomically, so that an error never damages the one it replaces."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle_aot.artifact import ARTIFACT_FILES, MANIFEST
from eagle_aot.common.errors import EagleError, ExportError, reason
from eagle_aot.common.files import apply_umask
from eagle_aot.common.memory import in_binary
from eagle_aot.common.strict_json import read_object

PARTIAL = re.compile(r"\..+\.partial-[a-z0-9_]{8}")
"""Matches the name of an unfinished artifact's directory, as `mkdtemp` makes it."""
ELSEWHERE = "choose another --output-dir"


def check_output_dir(output_dir: Path) -> None:
    """Raise ExportError unless an artifact can be written to `output_dir`.

    It must not exist, be empty, or be an artifact to replace. Creating a directory next to it is
    tried.
    """
    final = output_dir.resolve()
    parent = next(path for path in final.parents if path.exists())
    try:
        if final.exists() and not final.is_dir():
            raise ExportError(f"{final}: exists and is not a directory: {ELSEWHERE}")
        if os.path.ismount(final):
            raise ExportError(f"{final}: a mount point cannot be replaced: name a directory in it")
        if final.is_dir() and (other := _not_ours(final)):
            raise ExportError(f"{final}: holds other files ({other}): {ELSEWHERE}")
        os.rmdir(tempfile.mkdtemp(prefix=f".{final.name}.trial-", dir=parent))
    except OSError as error:
        raise ExportError(f"{final}: cannot be written: {reason(error)}: {ELSEWHERE}") from error


def check_disk(output_dir: Path, needed: int) -> None:
    """Raise ExportError unless the disk of `output_dir` has `needed` bytes free, in addition to an
    artifact that is replaced."""
    final = output_dir.resolve()
    parent = next(path for path in final.parents if path.exists())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ExportError(
            f"{final}: weights take {in_binary(needed)}, and {in_binary(free)} are free on its "
            f"disk: {ELSEWHERE}"
        )


def _not_ours(directory: Path) -> str | None:
    """Return the name of a file that the manifest does not list."""
    names = sorted(path.name for path in directory.iterdir())
    try:
        listed = read_object(directory / MANIFEST)["files"] if names else {}
        expected = {MANIFEST, *ARTIFACT_FILES} & {MANIFEST, *listed}
    except (OSError, ValueError, KeyError, TypeError):
        return names[0]
    return next((name for name in names if name not in expected), None)


@contextmanager
def atomic_output_dir(output_dir: Path) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `output_dir` when the block succeeds.

    Until then it is a hidden directory next to it, locked while its process lives, and removed if
    the block fails. The next export to the same parent deletes what killed ones left, and restores
    an artifact that one was replacing. Raises ExportError for errors of the disk.
    """
    final = output_dir.resolve()
    partial: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.parent):
            _recover(final)
            partial = Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))
            in_use = os.open(partial, os.O_RDONLY)
            fcntl.flock(in_use, fcntl.LOCK_EX)
        try:
            yield partial
            for path in (partial, *partial.iterdir()):
                apply_umask(path)
            with _locked(final.parent):
                _replace(partial, final)
        finally:
            os.close(in_use)
    except EagleError:
        raise
    except OSError as error:
        raise ExportError(f"{final}: cannot be written: {reason(error)}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory against other exports while renaming."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`; if that fails, restore the artifact that was there."""
    if not final.exists():
        partial.rename(final)
        return
    replaced = _replaced(final)
    final.rename(replaced)
    try:
        partial.rename(final)
    except BaseException:  # an interrupt too
        if not final.exists():
            replaced.rename(final)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _recover(final: Path) -> None:
    """Clean up after a killed export."""
    replaced = _replaced(final)
    if replaced.exists() and not _is_artifact(replaced):
        raise ExportError(f"{replaced}: not an artifact that an export replaced: move it away")
    if replaced.exists() and final.exists():
        shutil.rmtree(replaced)
    elif replaced.exists():
        replaced.rename(final)
    for left in final.parent.glob(".*.partial-*"):
        if PARTIAL.fullmatch(left.name) and _is_artifact(left) and _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)


def _replaced(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def _is_artifact(left: Path) -> bool:
    """Return whether a directory holds nothing but files of an artifact, not necessarily all."""
    files = {MANIFEST, *ARTIFACT_FILES}
    try:
        return files.issuperset(os.listdir(left))
    except OSError:  # a file, or another user's
        return False


def _is_abandoned(partial: Path) -> bool:
    """Return whether no process has the lock; process ids mean nothing across containers."""
    try:
        handle = os.open(partial, os.O_RDONLY)
    except OSError:  # its export has just ended, or is another user's
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
