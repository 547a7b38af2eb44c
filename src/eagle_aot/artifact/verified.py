"""An artifact that several processes of one machine open is hashed by the first of them alone."""

import fcntl
import json
import os
import tempfile
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from eagle_aot.artifact.manifest import Manifest

Stamps = dict[str, list[Any]]
"""Of the directory and of each listed file its hash in the manifest and what changes when it does:
device, inode, length, and the times of its last change in ns, that of the content and the one that
nobody can set. The directory's tell of files that come and go."""


def verify_once(manifest: Manifest, directory: Path, key: str) -> None:
    """`Manifest.verify`, unless a process with this key has done it on this machine and nothing in
    the directory has changed since; several at once wait for one another.

    `key` is a secret of those who believe one another, fit for a file's name. Raises as
    `Manifest.verify` does.
    """
    try:
        file = opened(place(key))
    except OSError:  # nowhere to write to
        manifest.verify(directory)
        return
    with file:  # which unlocks it
        fcntl.flock(file, fcntl.LOCK_EX)
        found = stamps(manifest, directory)  # before it is read: what changes meanwhile is noticed
        if noted(file) != found:
            manifest.verify(directory)
            with suppress(OSError):  # a full disk: the next one verifies too
                note(file, found)


def forget(key: str) -> None:
    """What was verified on this machine, once nobody with this key is left."""
    place(key).unlink(missing_ok=True)


def place(key: str) -> Path:
    """Where it is noted."""
    return Path(tempfile.gettempdir()) / f"eagle-aot-{key}"


def opened(path: Path) -> FileIO:
    """A file of this user's alone. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "r+")


def stamps(manifest: Manifest, directory: Path) -> Stamps:
    """As they are now."""
    listed = {name: [record.sha256] for name, record in manifest.files.items()}
    hashes: Stamps = {"": [], **listed}
    return {name: known + stamp(directory / name) for name, known in hashes.items()}


def stamp(path: Path) -> list[int]:
    """Empty where it is not there, which `Manifest.verify` has words for."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def noted(file: FileIO) -> Stamps | None:
    """What was verified, None where nothing was, or its process died as it said so."""
    try:
        return json.loads(file.read())
    except ValueError:
        return None


def note(file: FileIO, found: Stamps) -> None:
    """In place of all before it."""
    file.seek(0)
    file.truncate()
    file.write(json.dumps(found).encode())
