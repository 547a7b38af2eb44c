"""Checkpoints of repositories without their weights: what a plan or a dummy reads of them."""

import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from eagle_aot.common.errors import CheckpointError
from eagle_aot.common.hub import Download, Repository, fetch, read_range
from eagle_aot.common.text import gigabytes
from eagle_aot.export.loading.locate import checkpoint_directory

WEIGHTS = (".safetensors", ".bin", ".gguf")
"""Suffixes of the files that are not downloaded."""
FIRST_BYTES = 8 << 20
"""Bytes of a GGUF file that are read first. Twice as many are read where its metadata, which
includes the vocabulary, is longer."""
MOST_BYTES = 256 << 20
"""Bytes that are read at most: the longest vocabularies take some tens of megabytes."""


def config_directory(download: Download) -> Path:
    """Download a checkpoint's config, tokenizer and other small files; return its directory.

    Of a GGUF file that is not in the cache the metadata is read, and a copy without tensors is
    returned, which is deleted with this process. Raises HubError, CheckpointError and
    UnsupportedError.
    """
    small = tuple(file for file in download.missing if not file.path.endswith(WEIGHTS))
    fetch([replace(download, files=tuple(file.path for file in small), missing=small)])
    gguf = next((file for file in download.missing if file.path.endswith(".gguf")), None)
    if gguf is None:
        return checkpoint_directory(download)
    copy = _copy_of_gguf(download.repository, download.commit, gguf.path, gguf.size)
    if download.repository.file is not None:
        return copy
    for name in download.files:
        if name != gguf.path:
            shutil.copyfile(download.directory / name, copy.parent / name)
    return copy.parent


def _copy_of_gguf(repository: Repository, commit: str, name: str, size: int) -> Path:
    return Path(_directory_of_gguf(repository, commit, name, size).name) / name


@cache  # which keeps the directory while this process lives
def _directory_of_gguf(
    repository: Repository, commit: str, name: str, size: int
) -> "TemporaryDirectory[str]":
    """Make a directory with a GGUF file of `size` bytes that has its metadata and the factors of
    its rotary frequencies, and holes instead of its other tensors."""
    from eagle_aot.targets.weight_files.gguf_file import GgufFile  # an optional dependency

    directory = TemporaryDirectory(prefix="gguf-")
    path = Path(directory.name) / name
    path.write_bytes(_metadata(repository, commit, name, size))
    os.truncate(path, size)
    if (factors := GgufFile(path).factors_span) is not None:
        with path.open("r+b") as file:
            file.seek(factors.start)
            file.write(read_range(repository, commit, name, factors))
    return directory


def _metadata(repository: Repository, commit: str, name: str, size: int) -> bytes:
    """Read a GGUF file up to its tensors' data or further. Raises CheckpointError for another file
    and for metadata of more than `MOST_BYTES`, HubError."""
    from eagle_aot.targets.weight_files.gguf_file import has_whole_head

    count = FIRST_BYTES
    while True:
        data = read_range(repository, commit, name, range(min(count, size))) if size else b""
        try:
            if has_whole_head(data):
                return data
        except ValueError as error:
            raise CheckpointError(f"{repository}: {name} is no GGUF file: {error}") from error
        if count >= size:
            raise CheckpointError(f"{repository}: {name} is cut short")
        if count >= MOST_BYTES:
            raise CheckpointError(
                f"{repository}: {name}: its metadata takes more than {gigabytes(MOST_BYTES)}"
            )
        count *= 2
