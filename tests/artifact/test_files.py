"""Records of files: the hashes that coreutils give, whatever the number of threads."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle_aot.artifact import FileRecord, file_record, file_records
from eagle_aot.artifact import files as module


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
def test_what_is_no_record_is_refused(stored: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        msgspec.convert(stored, FileRecord)
