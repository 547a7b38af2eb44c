"""What a sequence costs, as the export tells and everybody else reads it."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.artifact import CacheBytes
from support.files.artifact import write_artifact

TOLD = CacheBytes(
    bytes=120,
    bytes_of_a_sequence=40,
    target_bytes_of_a_sequence=30,
    draft_bytes_of_a_sequence=10,
)


def test_it_is_read_back(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path, decisions={"caches": TOLD.to_json()})
    assert CacheBytes.of(manifest) == TOLD
    assert TOLD.sequences == 3


@pytest.mark.parametrize("decisions", [{}, {"caches": None}, {"caches": {"bytes": 120}}])
def test_an_export_that_did_not_tell(tmp_path: Path, decisions: dict[str, Any]) -> None:
    assert CacheBytes.of(write_artifact(tmp_path, decisions=decisions)) is None
