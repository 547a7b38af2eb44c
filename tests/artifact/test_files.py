"""Records of files, with the hashes that coreutils give, and of the bytes of caches."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle_aot.artifact import CacheBytes, FileRecord, file_record, file_records
from eagle_aot.artifact import files as module
from support.files.artifact import write_artifact


def test_a_short_files_hash_is_sha256sums(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    printed = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    assert file_record(path) == FileRecord(25600, printed.stdout.split()[0])


def test_a_long_files_hash_is_that_of_its_parts_hashes(tmp_path: Path) -> None:
    path, parts = tmp_path / "file", []
    with path.open("wb") as file:
        for length in (64 << 20, 5):
            part = bytes([length % 251]) * length
            file.write(part)
            parts.append(hashlib.sha256(part).digest())
    expected = hashlib.sha256(b"".join(parts)).hexdigest()
    assert file_record(path) == FileRecord((64 << 20) + 5, expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(1, 4))
def test_any_number_of_threads_and_parts(
    tmp_path: Path, contents: list[bytes], threads: int
) -> None:
    paths = [tmp_path / str(i) for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART", 8)
        patch.setattr(module, "READ", 3)
        patch.setattr(module, "thread_count", lambda: threads)
        found = file_records(paths)
    assert list(found.values()) == [oracle(content) for content in contents]


def oracle(content: bytes) -> FileRecord:
    parts = [content[i : i + 8] for i in range(0, len(content), 8)] or [b""]
    digests = [hashlib.sha256(part) for part in parts]
    joined = hashlib.sha256(b"".join(d.digest() for d in digests))
    return FileRecord(len(content), (digests[0] if len(digests) == 1 else joined).hexdigest())


HASH = "0" * 64


@pytest.mark.parametrize(("stored", "wrong"), [
    (None, "Expected `object`, got `null`"),
    (HASH, "Expected `object`, got `str`"),
    ([1, HASH], "Expected `object`, got `array`"),
    ({"bytes": 1}, "missing required field `sha256`"),
    ({"bytes": 1, "sha256": HASH, "path": "/"}, "unknown field `path`"),
    ({"bytes": "1", "sha256": HASH}, "Expected `int`, got `str`"),
    ({"bytes": 1.0, "sha256": HASH}, "Expected `int`, got `float`"),
    ({"bytes": True, "sha256": HASH}, "Expected `int`, got `bool`"),
    ({"bytes": -1, "sha256": HASH}, "Expected `int` >= 0"),
    ({"bytes": 1, "sha256": 0}, "Expected `str`, got `int`"),
    ({"bytes": 1, "sha256": HASH[1:]}, "Expected `str` matching"),
    ({"bytes": 1, "sha256": HASH + "\n"}, "Expected `str` matching"),
    ({"bytes": 1, "sha256": "G" * 64}, "Expected `str` matching"),
    ({"bytes": 1, "sha256": "A" * 64}, "Expected `str` matching"),
])  # fmt: skip
def test_invalid_file_records_are_refused(stored: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        msgspec.convert(stored, FileRecord)


CACHES = CacheBytes(
    bytes=12_000_000_000,
    bytes_of_a_sequence=4_000_000_000,
    target_bytes_of_a_sequence=3_900_000_000,
    draft_bytes_of_a_sequence=100_000_000,
)


def test_cache_bytes_are_read_back_from_a_manifest(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path, decisions={"caches": CACHES.to_json()})
    assert CacheBytes.of(manifest) == CACHES
    assert CACHES.sequences == 3


@pytest.mark.parametrize("decisions", [{}, {"caches": None}, {"caches": {"bytes": 120}}])
def test_manifest_without_cache_bytes_gives_none(tmp_path: Path, decisions: dict[str, Any]) -> None:
    assert CacheBytes.of(write_artifact(tmp_path, decisions=decisions)) is None


def test_only_whole_sequences_fit() -> None:
    assert [
        CACHES.fitting(free) for free in (-1, 3_999_999_999, 4_000_000_000, 13_000_000_000)
    ] == [0, 0, 1, 3]


def test_cache_bytes_are_printed_in_one_line() -> None:
    assert str(CACHES) == (
        "a sequence takes 4.00 GB of caches (target 3.90 GB, drafter 100.0 MB), "
        "all 3 of this artifact 12.00 GB"
    )
