"""Which drafter is made for an artifact."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle_aot.artifact import DRAFT_IDS, DRAFTERS, METHODS, TARGET_METHODS, Manifest, methods_of
from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.drafters import KINDS, drafter_factory, read_draft_ids
from support.files.artifact import write_artifact

KNOWN = "eagle3, p-eagle, gemma4-assistant, dflash, ngram"


def test_the_drafter_is_that_of_the_manifest(tmp_path: Path) -> None:
    write_artifact(tmp_path)
    assert drafter_factory(Manifest.read(tmp_path), tmp_path) is KINDS["eagle3"]


def test_an_unknown_drafter_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    write_artifact(tmp_path, drafter="telepathy")
    with pytest.raises(ArtifactError, match=f"'telepathy' is not known .* has {KNOWN}: run"):
        load_artifact(tmp_path)


def test_another_drafter_can_be_requested(tmp_path: Path) -> None:
    write_artifact(tmp_path, drafter="telepathy")
    assert drafter_factory(Manifest.read(tmp_path), tmp_path, "ngram") is KINDS["ngram"]


def test_a_drafter_whose_methods_are_missing_is_refused(tmp_path: Path) -> None:
    write_artifact(tmp_path, drafter="ngram", methods=list(TARGET_METHODS))
    with pytest.raises(SettingError, match=r"'eagle3': .* has no draft_decode: .* with 'ngram'"):
        load_artifact(tmp_path, drafter="eagle3")
    with pytest.raises(SettingError, match=f"'telepathy' is not known: there are {KNOWN}"):
        load_artifact(tmp_path, drafter="telepathy")


def test_each_drafter_has_its_methods() -> None:
    assert list(KINDS) == list(DRAFTERS)
    assert methods_of("eagle3") == methods_of("eagle3", METHODS) == METHODS
    assert methods_of("eagle3", [*METHODS, "draft_prefill"]) == (*METHODS, "draft_prefill")
    assert methods_of("ngram", ["copy_rows", "other"]) == (*TARGET_METHODS, "copy_rows")
    assert methods_of("ngram") == methods_of("telepathy") == TARGET_METHODS


def test_draft_ids_are_read_where_there_are_any(tmp_path: Path) -> None:
    assert read_draft_ids(tmp_path, "cpu") is None
    save_file({"target_ids": torch.tensor([3, 1])}, tmp_path / DRAFT_IDS)
    ids = read_draft_ids(tmp_path, torch.device("cpu"))
    assert ids is not None and ids.tolist() == [3, 1]
