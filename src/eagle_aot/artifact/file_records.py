"""What identifies a file: its length and a SHA-256, taken by several threads at once.

A file of up to 64 MiB has the hash that `sha256sum` prints. A longer one is cut into parts of
64 MiB, and its hash is that of its parts' hashes, one after another:

    split -b 64M --filter='sha256sum | xxd -r -p' FILE | sha256sum

One thread hashes about 1.5 GB a second; an artifact of 21 GB would keep its user waiting.
"""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PART = 64 << 20  # bytes
READ = 1 << 20  # bytes that a thread holds of its part
MAX_THREADS = 16  # more wait for memory


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Length in bytes, and the hash as above in hexadecimal digits."""

    bytes: int
    sha256: str

    @classmethod
    def parse(cls, stored: Any) -> "FileRecord":
        """Read back from JSON. Raises ValueError when it is something else."""
        if not isinstance(stored, dict) or set(stored) != {"bytes", "sha256"}:
            raise ValueError("a file's record is not its bytes and sha256")
        size, digest = stored["bytes"], stored["sha256"]
        if type(size) is not int or size < 0 or not _is_sha256(digest):
            raise ValueError("a file's record is not its bytes and sha256")
        return cls(size, digest)


def file_record(path: Path) -> FileRecord:
    """Of one file. Raises OSError."""
    return file_records([path])[path.name]


def file_records(paths: Iterable[Path]) -> dict[str, FileRecord]:
    """Records by file name, in the order given. Raises OSError."""
    sizes = {path: path.stat().st_size for path in paths}
    parts = [(path, at) for path, size in sizes.items() for at in range(0, max(size, 1), PART)]
    digests: dict[Path, list[bytes]] = {path: [] for path in sizes}
    with ThreadPoolExecutor(thread_count()) as pool:
        for (path, _), digest in zip(parts, pool.map(_part_digest, parts), strict=True):
            digests[path].append(digest)
    return {p.name: FileRecord(size, _joined(digests[p])) for p, size in sizes.items()}


def thread_count() -> int:
    """As many as this process has cores, within reason."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)


def _part_digest(part: tuple[Path, int]) -> bytes:
    path, start = part
    digest, buffer = hashlib.sha256(), memoryview(bytearray(READ))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = PART
        while left and (count := file.readinto(buffer[: min(READ, left)])):
            digest.update(buffer[:count])
            left -= count
    return digest.digest()


def _joined(digests: list[bytes]) -> str:
    if len(digests) == 1:
        return digests[0].hex()
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _is_sha256(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")
