"""The files of an artifact: their names, and their records, a length and a SHA-256 each.

A file of up to 64 MiB has the hash that `sha256sum` prints. A longer one is cut into parts of
64 MiB, and its hash is that of its parts' hashes, one after another:

    split -b 64M --filter='sha256sum | xxd -r -p' FILE | sha256sum

One thread hashes about 1.5 GB per second: an artifact of 21 GB would take 14 seconds.
"""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

MANIFEST = "manifest.json"
PROGRAM = "model.pte"
WEIGHTS = "model.ptd"
DRAFT_IDS = "draft_ids.safetensors"
"""Contains `target_ids` int64 [Vd], the target id of each draft id; missing if both are equal."""
LONGEST_NAME = 100  # of a file in an artifact
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Settings of the image processor; the first file that exists counts."""
ARTIFACT_FILES = (*TOKENIZER_FILES, *PROCESSOR_FILES, WEIGHTS, DRAFT_IDS, PROGRAM)
"""All files of an artifact but its manifest: a runner reads no other."""

PART = 64 << 20  # bytes
READ = 1 << 20  # bytes that a thread reads at once
MAX_THREADS = 16  # more wait for memory


class FileRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A file's length in bytes, and its hash as above in hexadecimal digits."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


def tokenizer_files(directory: Path) -> list[Path]:
    """Return the tokenizer's files in a checkpoint or artifact directory."""
    return [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]


def mismatch(directory: Path, name: str, size: int) -> str:
    """Return what is wrong with a file that should have `size` bytes, without reading it; empty
    if nothing is."""
    if not is_plain(name):
        return f"{directory / MANIFEST}: {name[:LONGEST_NAME]!r} is not a plain file name"
    path = directory / name
    if leads_out(directory, name):
        return f"{path}: a link that leads out of the artifact"
    if not path.is_file():
        return f"{path}: missing"
    if (actual := path.stat().st_size) != size:
        return f"{path}: has {actual} bytes, {MANIFEST} says {size}"
    return ""


def is_plain(name: str) -> bool:
    """Return whether a name is a printable file name without a directory."""
    bare = name == os.path.basename(name) and name not in ("", ".", "..")
    return bare and name.isprintable() and len(name) <= LONGEST_NAME


def leads_out(directory: Path, name: str) -> bool:
    """Return whether a file of `directory` is a link that leads out of it.

    In the cache of huggingface_hub it may lead to where that keeps the content of files.
    """
    home, file = (Path(os.path.realpath(path)) for path in (directory, directory / name))
    if file.parent == home:
        return False
    in_cache = home.parent.name == "snapshots" and home.parents[1].name.startswith("models--")
    stores = [folder / "blobs" for folder in home.parents[1:3]] if in_cache else []
    return not any(file.is_relative_to(store) for store in stores)


def file_record(path: Path) -> FileRecord:
    """Return the record of one file. Raises OSError."""
    return file_records([path])[path.name]


def file_records(paths: Iterable[Path]) -> dict[str, FileRecord]:
    """Return the records by file name, in the order of `paths`. Raises OSError."""
    sizes = {path: path.stat().st_size for path in paths}
    parts = [(path, at) for path, size in sizes.items() for at in range(0, max(size, 1), PART)]
    digests: dict[Path, list[bytes]] = {path: [] for path in sizes}
    with ThreadPoolExecutor(thread_count()) as pool:
        for (path, _), digest in zip(parts, pool.map(_part_digest, parts), strict=True):
            digests[path].append(digest)
    return {p.name: FileRecord(size, _joined(digests[p])) for p, size in sizes.items()}


def thread_count() -> int:
    """Return the number of cores that this process may use, `MAX_THREADS` at most."""
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
