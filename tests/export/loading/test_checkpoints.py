"""Resolving the checkpoints of a spec, and combinations of options that are refused."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.common.errors import CheckpointNotFoundError, SettingError
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.targets import TARGETS, get_target
from support.pre_norm_oracle import random_pre_norm, save

TINY = TARGETS["gemma4-tiny"]


def resolved(target_model: str = "gemma4-tiny", **options: Any) -> ExportSpec:
    return resolve_checkpoints(ExportSpec(target_model=target_model, **options)).spec


def test_checkpoints_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--target-model is required"):
        resolve_checkpoints(ExportSpec())
    with pytest.raises(SettingError, match="--target-dir is needed: gemma4-31b"):
        resolved("gemma4-31b")
    with pytest.raises(FileNotFoundError, match=r"--draft-dir .*gone: no such"):
        resolved(draft_dir=tmp_path / "gone")
    with pytest.raises(CheckpointNotFoundError, match=r"holds no config\.json, so it is no draft"):
        resolved(draft_dir=tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"--target-dir .*gone: no such"):
        resolved(target_dir=tmp_path / "gone")
    assert resolved("gemma4-31b", load_format="dummy").target_dir is None
    with pytest.raises(SettingError, match="--dummy-layers: a checkpoint has its own"):
        resolved(dummy_layers=2)


def test_shipped_head_is_the_default() -> None:
    shipped = resolved()
    assert (shipped.target_dir, shipped.draft_dir) == (TINY.target_dir, TINY.draft_dir)
    assert shipped.has_head
    alone = resolved(drafter="ngram")
    assert (alone.target_dir, alone.draft_dir) == (TINY.target_dir, None)
    assert not alone.has_head


def test_head_that_ships_alone_drafts_for_the_target_of_its_name(tmp_path: Path) -> None:
    target = save(random_pre_norm("llama"), tmp_path)
    head = get_target("smollm2-135m").draft_dir
    assert resolved("smollm2-135m", target_dir=target).draft_dir == head
    for name, drafter in (("smollm2-135m", "ngram"), ("auto", "auto"), ("llama-3.2-1b", "auto")):
        assert not resolved(name, target_dir=target, drafter=drafter).has_head


def test_target_without_a_head_uses_ngram() -> None:
    alone = resolved(target_dir=TINY.target_dir)
    assert (alone.draft_dir, alone.drafter, alone.has_head) == (None, "ngram", False)
    assert resolved(target_dir=TINY.target_dir, drafter=alone.drafter) == alone


@pytest.mark.parametrize("drafter", ["auto", "eagle3"])
def test_head_that_is_named_drafts(drafter: str) -> None:
    spec = resolved(target_dir=TINY.target_dir, draft_dir=TINY.draft_dir, drafter=drafter)
    assert spec.has_head and spec.draft_dir == TINY.draft_dir


@pytest.mark.parametrize(("requested", "expected"), [("auto", "eagle3"), ("ngram", "ngram")])
def test_dummy_has_a_head_unless_ngram_is_requested(requested: str, expected: str) -> None:
    assert resolved("gemma4-31b", load_format="dummy", drafter=requested).drafter == expected


@pytest.mark.parametrize(("options", "message"), [
    ({"drafter": "eagle3"}, "--draft-dir is needed: eagle3 is read from"),
    ({"drafter": "telepathy"}, "--drafter telepathy: must be one of auto, "),
    (
        {"drafter": "ngram", "draft_dir": TINY.draft_dir},
        "--drafter ngram reads no head: leave out --draft-dir",
    ),
    ({"tap_layers": (1, 2, 3)}, "--tap-layers: there is no head, name one with --draft-dir"),
    ({"draft_quant": "int8"}, "--draft-quant: there is no head, name one with --draft-dir"),
])  # fmt: skip
def test_options_of_a_head_need_a_head(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        resolved(target_dir=TINY.target_dir, **options)
