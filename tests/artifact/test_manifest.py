"""The contract between export and runner: constants and manifest."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from eagle_aot.artifact import (
    ARTIFACT_FILES,
    MANIFEST,
    METHODS,
    PROGRAM,
    WEIGHTS,
    CheckpointIdentity,
    Constants,
    Device,
    FileRecord,
    Manifest,
    RowRange,
    Stage,
    TargetIdentity,
    file_record,
)
from eagle_aot.common.errors import ArtifactError
from support.files.artifact import CONSTANTS, write_artifact

PUBLISHED = {
    "get_max_seq_len", "get_vocab_size", "get_n_layers", "get_min_prefill_chunk",
    "get_max_prefill_chunk", "get_sliding_window", "get_chain_len", "get_max_rows",
    "get_max_step_rows", "get_max_batch_size", "get_tail", "get_flat_slots",
    "get_draft_vocab_size", "get_hidden_size", "get_eos_ids", "use_kv_cache",
}  # fmt: skip


def record(size: Any) -> dict[str, Any]:
    """Of a file of so many zeros, not of one that is there."""
    return {"bytes": size, "sha256": "0" * 64}


def damaged(place: str) -> str:
    """What a refusal says, as a regular expression."""
    return rf"manifest\.json: damaged \(.* at `{re.escape(place)}`\): export again$"


SEVERAL_DRAFTERS = (
    r"manifest\.json: holds several drafters, which this version does not run: "
    "export again with one --draft-dir, once for each drafter$"
)
DEVICE = {"name": "a GPU", "compute_capability": "9.0", "multiprocessors": 132, "cuda": "13.0"}
STAGE = {"name": "load", "seconds": 1.5, "host_peak_bytes": 1, "gpu_peak_bytes": 0}


def outputs() -> dict[str, list[Any]]:
    """What running the constant methods gives."""
    methods = CONSTANTS.methods()
    return {name: v if isinstance(v, list) else [v] for name, v in methods.items()}


def test_exactly_the_published_constants() -> None:
    assert set(CONSTANTS.methods()) == PUBLISHED
    assert Constants.from_methods(outputs()) == CONSTANTS


@pytest.mark.parametrize("missing", sorted(PUBLISHED))
def test_a_missing_constant_is_named(missing: str) -> None:
    found = outputs()
    del found[missing]
    with pytest.raises(ArtifactError, match=f"constant {missing} is missing: export again"):
        Constants.from_methods(found)


def test_values_that_json_readers_reject_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_artifact(tmp_path, self_test={"nats": float("nan")})
    assert not (tmp_path / MANIFEST).exists()


def test_a_manifest_reads_back_and_verifies(tmp_path: Path) -> None:
    hashed = FileRecord(1, "0" * 64)
    written = write_artifact(
        tmp_path,
        device=Device(name="a GPU", compute_capability="9.0", multiprocessors=132, cuda="13.0"),
        target=TargetIdentity(name="qwen3", directory="qwen", files={"config.json": hashed}),
        draft=CheckpointIdentity(directory="head", files={"config.json": hashed}),
        shapes={"prefill": RowRange(min_rows=9, max_rows=16)},
        caches=["target.kv_cache.k"],
        stages=[Stage("load", 1.5, 1, 0)],
        self_test={"verdict": "fits", "shares": [0.5]},
    )
    read = Manifest.read(tmp_path)
    assert read == written and read.methods == list(METHODS)
    read.verify(tmp_path)


@pytest.mark.parametrize(("edit", "message"), [
    ({"schema_version": 99}, "schema version 99, this runner reads 4: install the eagle-aot that"),
    ({"schema_version": "4"}, damaged("$.schema_version")),
    ({"schema_version": 4.0}, damaged("$.schema_version")),
    ({"schema_version": True}, damaged("$.schema_version")),
    ({"schema_version": None}, damaged("$.schema_version")),
    ({"drafters": [{"name": "eagle3"}, {"name": "small"}]}, SEVERAL_DRAFTERS),
    ({"surprise": 1}, r"damaged \(Object contains unknown field `surprise`\): export again"),
    ({"files": ["model.pte"]}, damaged("$.files")),
    ({"versions": "2.13"}, damaged("$.versions")),
    ({"versions": {"torch": None}}, damaged("$.versions[...]")),
    ({"device": "a GPU"}, damaged("$.device")),
    ({"device": DEVICE | {"name": 3}}, damaged("$.device.name")),
    ({"device": DEVICE | {"multiprocessors": "132"}}, damaged("$.device.multiprocessors")),
    ({"device": DEVICE | {"memory": 80}}, damaged("$.device")),
    ({"target": {"directory": None, "files": {}}}, damaged("$.target")),
    ({"draft": {"directory": 3, "files": {}}}, damaged("$.draft.directory")),
    ({"draft": {"directory": None, "files": {"a": {}}}}, damaged("$.draft.files[...]")),
    ({"options": "x"}, damaged("$.options")),
    ({"constants": {"get_tail": 1.5}}, damaged("$.constants[...]")),
    ({"constants": {"get_eos_ids": ["1"]}}, damaged("$.constants[...][0]")),
    ({"methods": "prefill"}, damaged("$.methods")),
    ({"shapes": {"prefill": {"min_rows": 1}}}, damaged("$.shapes[...]")),
    ({"caches": [None]}, damaged("$.caches[0]")),
    ({"stages": {}}, damaged("$.stages")),
    ({"stages": [STAGE | {"seconds": "1"}]}, damaged("$.stages[0].seconds")),
    ({"self_test": []}, damaged("$.self_test")),
    ({"files": {}}, r"model\.pte: not listed in manifest\.json: export again"),
    ({"files": {"model.pte": record(7)}}, "does not match its hash"),
    ({"files": {"model.pte": record(8)}}, "has 7 bytes, manifest.json says 8: export again"),
    ({"files": {"model.pte": record(7), "tokenizer.json": record(0)}}, "tokenizer.json: missing"),
    ({"files": {"model.pte": "0" * 64}}, damaged("$.files[...]")),
    ({"files": {"model.pte": record(-1)}}, damaged("$.files[...].bytes")),
    ({"files": {"model.pte": record(7) | {"sha256": "0"}}}, damaged("$.files[...].sha256")),
])  # fmt: skip
def test_a_changed_manifest_is_refused(tmp_path: Path, edit: dict[str, Any], message: str) -> None:
    write_artifact(tmp_path)
    path = tmp_path / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(ArtifactError, match=message):
        Manifest.read(tmp_path).verify(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}"])
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError, match="damaged"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../outside", "/etc/hostname", "..", ".", "", "a/b", "./model.pte", "a\0b", "a\nb", "x" * 101],
)
def test_files_outside_the_artifact_are_never_opened(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path.parent / "outside").write_bytes(b"")
    manifest.files[name] = FileRecord(0, "0" * 64)
    monkeypatch.setattr(Path, "open", None)
    with pytest.raises(
        ArtifactError, match=f"{re.escape(repr(name[:100]))} is not a plain file name"
    ):
        manifest.verify(tmp_path)


@pytest.mark.parametrize("name", [PROGRAM, WEIGHTS, "tokenizer.json", MANIFEST])
def test_links_that_lead_out_of_the_artifact_are_never_followed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    manifest = write_artifact(directory)
    (directory / name).touch()
    manifest.files[name] = file_record(directory / name)
    (directory / name).symlink_to((directory / name).rename(tmp_path / name))
    monkeypatch.setattr(Path, "open", None)
    with pytest.raises(ArtifactError, match=f"{name}: a link that leads out of the artifact"):
        Manifest.read(directory) if name == MANIFEST else manifest.verify(directory)


def test_an_artifact_may_be_reached_by_a_link_and_hold_links_to_itself(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    manifest = write_artifact(directory)
    (directory / PROGRAM).rename(directory / "stored")
    (directory / PROGRAM).symlink_to("stored")
    (tmp_path / "link").symlink_to(directory)
    assert Manifest.read(tmp_path / "link") == manifest
    manifest.verify(tmp_path / "link")


def test_directory_in_place_of_a_file_counts_as_missing(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path / PROGRAM).unlink()
    for make in (os.mkfifo, os.mkdir):
        make(tmp_path / PROGRAM)
        with pytest.raises(ArtifactError, match=r"model\.pte: missing: export again"):
            manifest.verify(tmp_path)
        (tmp_path / PROGRAM).rmdir() if make is os.mkdir else (tmp_path / PROGRAM).unlink()


def test_a_file_of_another_length_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path / PROGRAM).write_bytes(b"more than that")
    monkeypatch.setattr(Path, "open", None)
    with pytest.raises(ArtifactError, match=r"model\.pte: has 14 bytes, manifest\.json says 7"):
        manifest.verify(tmp_path)


def test_problems_are_listed_by_file_name(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    assert manifest.problems(tmp_path) == {}
    (tmp_path / PROGRAM).write_bytes(b"pRogram")
    assert list(manifest.problems(tmp_path)) == [PROGRAM]
    (tmp_path / WEIGHTS).touch()
    (tmp_path / "tokenizer.json").touch()
    assert list(manifest.problems(tmp_path)) == ["tokenizer.json", WEIGHTS, PROGRAM]


NOT_ALWAYS = ("images",)


@pytest.mark.parametrize("name", [f.name for f in fields(Manifest) if f.name not in NOT_ALWAYS])
def test_a_manifest_without_a_field_is_refused(tmp_path: Path, name: str) -> None:
    write_artifact(tmp_path)
    stored = json.loads((tmp_path / MANIFEST).read_text())
    del stored[name]
    (tmp_path / MANIFEST).write_text(json.dumps(stored))
    with pytest.raises(ArtifactError, match=rf"damaged \(.*{name}"):
        Manifest.read(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path / PROGRAM).unlink()
    with pytest.raises(ArtifactError, match=r"model\.pte: missing: export again"):
        manifest.verify(tmp_path)


@pytest.mark.parametrize("name", [name for name in ARTIFACT_FILES if name != PROGRAM])
def test_unlisted_files_that_would_be_read_are_refused(tmp_path: Path, name: str) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path / name).write_bytes(b"of another artifact")
    with pytest.raises(ArtifactError, match=f"{name}: not listed in manifest.json"):
        manifest.verify(tmp_path)


def test_a_name_that_no_file_can_have_is_shown_in_part(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    long = replace(manifest, files=manifest.files | {"x" * 5000: FileRecord(0, "0" * 64)})
    with pytest.raises(ArtifactError, match=r"'x{100}' is not a plain file name: export again$"):
        long.verify(tmp_path)
