"""Artifacts that hold several drafters, as far as their manifests go."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eagle_aot.artifact import (
    CheckpointIdentity,
    DrafterRecord,
    Manifest,
    all_program_names,
    alone,
    drafters_of,
    program_names,
)
from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.runtime_runner.drafters import names_of
from support.files.artifact import CONSTANTS, write_artifact

METHODS = ["prefill", "target_verify", "eagle3_draft_decode", "my_own_draft_decode",
           "my_own_draft_prefill", "copy_rows"]  # fmt: skip


def record(name: str, first: int, **changes: Any) -> DrafterRecord:
    """Of a head that reads four of the eight features."""
    found = DrafterRecord(
        name=name,
        kind="eagle3",
        draft=CheckpointIdentity(directory=name, files={}),
        first_feature=first,
        features=4,
        chain_len=3,
        facts={"head": {"layers": first}},
        self_test={"verdict": name},
    )
    return replace(found, **changes)


def both(directory: Path) -> Manifest:
    records = [record("eagle3", 0), record("my-own", 4)]
    return write_artifact(directory, methods=METHODS, drafters=records)


def test_one_drafter_is_not_written(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    assert "drafters" not in manifest.to_json()
    assert drafters_of(manifest) == ("eagle3",) and alone(manifest, "eagle3") == manifest


def test_each_is_seen_as_if_it_were_alone(tmp_path: Path) -> None:
    both(tmp_path)
    manifest = Manifest.read(tmp_path)
    assert drafters_of(manifest) == ("eagle3", "my-own")
    own = alone(manifest, "my-own")
    assert own.methods == ["prefill", "target_verify", "draft_decode", "draft_prefill", "copy_rows"]
    assert own.decisions["head"] == {"layers": 4} and own.self_test == {"verdict": "my-own"}
    assert (own.drafter, own.draft.directory, own.drafters) == ("eagle3", "my-own", None)
    assert program_names(manifest, "my-own")["draft_prefill"] == "my_own_draft_prefill"
    assert [*program_names(manifest, "ngram")] == ["prefill", "target_verify", "copy_rows"]
    assert set(all_program_names(manifest)) == set(METHODS)


def test_one_is_chosen_by_its_name_or_all_are(tmp_path: Path) -> None:
    manifest = both(tmp_path)
    for asked, names in (
        (None, ("eagle3",)),
        ("my-own", ("my-own",)),
        ("ngram", ("ngram",)),
        ("auto", ("eagle3", "my-own", "ngram")),
    ):
        assert names_of(manifest, tmp_path, asked) == names
    for missing in ("dflash", "telepathy"):
        with pytest.raises(SettingError, match=f"'{missing}': .* has eagle3, my-own, and ngram"):
            names_of(manifest, tmp_path, missing)
    assert names_of(write_artifact(tmp_path), tmp_path, "auto") == ("eagle3", "ngram")
    assert names_of(write_artifact(tmp_path, drafter="ngram"), tmp_path, "auto") == ("ngram",)


@pytest.mark.parametrize(
    "records",
    [
        [record("eagle3", 0)],
        [record("eagle3", 0), record("../up", 4)],
        [record("eagle3", 0), record("b", -1)],
    ],
    ids=["one alone", "a path", "no column"],
)
def test_records_that_cannot_be_are_refused(records: list[DrafterRecord], tmp_path: Path) -> None:
    write_artifact(tmp_path, methods=METHODS, drafters=records)
    with pytest.raises(ArtifactError, match="damaged"):
        Manifest.read(tmp_path)


def test_features_that_are_not_there_are_refused(tmp_path: Path) -> None:
    records = [record("eagle3", 0), record("b", CONSTANTS.hidden_size - 3)]
    manifest = write_artifact(tmp_path, methods=METHODS, drafters=records)
    with pytest.raises(ArtifactError, match="features of 'b'"):
        alone(manifest, "b")


def test_a_kind_that_is_not_known_is_refused(tmp_path: Path) -> None:
    records = [record("eagle3", 0), record("b", 4, kind="telepathy")]
    manifest = write_artifact(tmp_path, methods=METHODS, drafters=records)
    for asked in ("b", "auto"):
        with pytest.raises(ArtifactError, match="'telepathy' is not known to this runner"):
            names_of(manifest, tmp_path, asked)
    assert names_of(manifest, tmp_path, None) == ("eagle3",)
