"""The contract between export and runner: constants and manifest."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_aot.artifact import (
    MANIFEST,
    PROGRAM,
    SCHEMA_VERSION,
    WEIGHTS,
    Constants,
    Manifest,
    sha256_of,
)
from eagle_aot.errors import ArtifactError

CONSTANTS = Constants(
    max_seq_len=64,
    vocab_size=32,
    n_layers=3,
    min_prefill_chunk=9,
    max_prefill_chunk=16,
    sliding_window=8,
    chain_len=4,
    max_verify_window=8,
    draft_vocab_size=16,
    hidden_size=8,
    eos_ids=(1, 4),
)
PUBLISHED = {
    "get_max_seq_len",
    "get_vocab_size",
    "get_n_layers",
    "get_min_prefill_chunk",
    "get_max_prefill_chunk",
    "get_sliding_window",
    "get_chain_len",
    "get_max_verify_window",
    "get_draft_vocab_size",
    "get_hidden_size",
    "get_eos_ids",
    "use_kv_cache",
}


def outputs() -> dict[str, list[Any]]:
    """What running the constant methods gives."""
    methods = CONSTANTS.methods()
    return {name: v if isinstance(v, list) else [v] for name, v in methods.items()}


def write_artifact(directory: Path) -> Manifest:
    (directory / PROGRAM).write_bytes(b"program")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        eagle_aot_version="0",
        versions={},
        backend="xnnpack",
        device=None,
        load_format="auto",
        target={},
        draft={},
        tap_layers=(2, 4, 5),
        chain_len=4,
        constants=CONSTANTS.methods(),
        shapes={},
        stages=[],
        self_test=None,
        tokenizer_sha256=None,
        files={PROGRAM: sha256_of([directory / PROGRAM])},
    )
    manifest.write(directory)
    return manifest


def test_exactly_the_published_constants() -> None:
    assert set(CONSTANTS.methods()) == PUBLISHED
    assert Constants.from_methods(outputs()) == CONSTANTS


@pytest.mark.parametrize("missing", sorted(PUBLISHED))
def test_a_missing_constant_is_named(missing: str) -> None:
    found = outputs()
    del found[missing]
    with pytest.raises(ArtifactError, match=f"constant {missing} is missing: export again"):
        Constants.from_methods(found)


def test_a_manifest_reads_back_and_verifies(tmp_path: Path) -> None:
    written = write_artifact(tmp_path)
    read = Manifest.read(tmp_path)
    assert read == written
    read.verify(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"schema_version": 99}, "schema version 99, this runner reads 3"),
        ({"surprise": 1}, r"damaged \(fields \['surprise'\]\)"),
        ({"files": ["model.pte"]}, "damaged"),
        ({"versions": "2.13"}, "damaged"),
        ({"device": "a GPU"}, "damaged"),
        ({"device": {"name": 3}}, "damaged"),
        ({"versions": {"torch": None}}, "damaged"),
        ({"chain_len": "x"}, "damaged"),
        ({"stages": {}}, "damaged"),
        ({"files": {"model.pte": None, "x" * 5000: "0"}}, "model.pte: does not match"),
        ({"files": {}}, "lists no model.pte"),
        ({"files": {"model.pte": "0" * 64}}, "does not match its hash"),
        ({"files": {"model.pte": None, "../secret": "0"}}, "model.pte: does not match"),
    ],
)
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


def test_files_outside_the_artifact_are_never_opened(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    manifest.files["../outside"] = "0"
    with pytest.raises(ArtifactError, match=r"'\.\./outside' is not a plain file name"):
        manifest.verify(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path / PROGRAM).unlink()
    with pytest.raises(ArtifactError, match=r"model\.pte: missing: export again"):
        manifest.verify(tmp_path)


def test_weights_that_the_manifest_does_not_list_are_refused(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"weights")
    with pytest.raises(ArtifactError, match=r"model\.ptd: not listed in manifest\.json"):
        manifest.verify(tmp_path)


def test_a_name_that_no_file_can_have_is_shown_in_part(tmp_path: Path) -> None:
    manifest = write_artifact(tmp_path)
    long = replace(manifest, files=manifest.files | {"x" * 5000: "0"})
    with pytest.raises(ArtifactError, match=r"'x{100}' is not a plain file name$"):
        long.verify(tmp_path)
