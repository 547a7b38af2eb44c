"""The bytes of caches that an export records."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.artifact import CacheBytes
from support.files.artifact import write_artifact

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
