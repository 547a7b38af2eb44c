"""Files: small ones that a user names, read with a bound, and the permissions of new ones."""

import os
import stat
import sys
from pathlib import Path

STDIN = Path("-")


def read_small(path: Path, most: int) -> bytes:
    """Return the content of a regular file or a pipe; the path `-` is standard input.

    Raises OSError for one that cannot be read, which includes any other kind of file, and one of
    more than `most` bytes.
    """
    if path == STDIN:
        content = sys.stdin.buffer.read(most + 1)
    else:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise OSError("neither a file nor a pipe")
        with path.open("rb") as file:
            content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"longer than {most >> 20} MiB")
    return content


def apply_umask(path: Path) -> None:
    """Give a file or directory the permissions that new ones have: what wrote it, through a
    temporary file, may have made it private."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
