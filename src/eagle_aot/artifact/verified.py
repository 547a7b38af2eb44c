"""Verify an artifact once per machine: of several processes only the first hashes its files."""

import fcntl
import json
import os
import tempfile
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from eagle_aot.artifact.files import MANIFEST
from eagle_aot.artifact.manifest import Manifest
from eagle_aot.common.errors import ArtifactError

Stamps = dict[str, list[Any]]
"""For the directory ("") and each listed file: its hash in the manifest, device, inode, length,
`st_mtime_ns`, and `st_ctime_ns`, which no program can set. The directory's times change when files
are added or removed."""


class Snapshot:
    """The files of an artifact as they were before they were verified.

    A file is hashed and then opened again, by libraries that take its name. `check` finds out
    whether that was the same file with the same content.
    """

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        self._manifest, self._directory = manifest, directory
        self._stamps = self._current()

    def check(self) -> None:
        """Raise ArtifactError if a file was changed or replaced since."""
        if self._current() != self._stamps:
            raise ArtifactError(f"{self._directory}: changed while it was read: open it again")

    def _current(self) -> Stamps:
        current = stamps(self._manifest, self._directory)
        manifest = stamp(self._directory / MANIFEST)
        return {**current, MANIFEST: manifest, "": current[""][:2]}  # other files may be added


def verify_once(manifest: Manifest, directory: Path, key: str) -> None:
    """Run `Manifest.verify`, unless a process with this key did so on this machine and nothing in
    the directory has changed since. Processes at the same time wait for one another.

    `key` is a secret of processes that trust one another; it becomes part of a file's name. Raises
    as `Manifest.verify` does.
    """
    try:
        file = open_private(stamps_file(key))
    except OSError:  # nowhere to write to
        manifest.verify(directory)
        return
    with file:  # which unlocks it
        fcntl.flock(file, fcntl.LOCK_EX)
        current = stamps(manifest, directory)  # before the files are read, to notice later changes
        if read_stamps(file) != current:
            manifest.verify(directory)
            with suppress(OSError):  # a full disk: the next process verifies as well
                write_stamps(file, current)


def forget(key: str) -> None:
    """Remove the record, when no process with this key is left."""
    stamps_file(key).unlink(missing_ok=True)


def stamps_file(key: str) -> Path:
    """Return the file that records what was verified."""
    return Path(tempfile.gettempdir()) / f"eagle-aot-{key}"


def open_private(path: Path) -> FileIO:
    """Open a file that only this user may read and write. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "r+")


def stamps(manifest: Manifest, directory: Path) -> Stamps:
    """Return the stamps of an artifact as it is now."""
    listed = {name: [record.sha256] for name, record in manifest.files.items()}
    hashes: Stamps = {"": [], **listed}
    return {name: sha256 + stamp(directory / name) for name, sha256 in hashes.items()}


def stamp(path: Path) -> list[int]:
    """Return one file's stamp, empty for a missing file, which `Manifest.verify` reports."""
    try:
        stat = path.stat()
    except OSError:
        return []
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def read_stamps(file: FileIO) -> Stamps | None:
    """Return the recorded stamps, None where there are none or they were not written whole."""
    try:
        return json.loads(file.read())
    except ValueError:
        return None


def write_stamps(file: FileIO, current: Stamps) -> None:
    """Replace the recorded stamps."""
    file.seek(0)
    file.truncate()
    file.write(json.dumps(current).encode())
