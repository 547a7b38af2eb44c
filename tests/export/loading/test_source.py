"""What is asked for, completed from the table, and what says nothing together."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.common.errors import CheckpointNotFoundError, SettingError
from eagle_aot.export import Source
from eagle_aot.targets import TARGETS, get_target
from support.pre_norm_oracle import random_pre_norm, save

TINY = TARGETS["gemma4-tiny"]


def test_a_source_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--target-dir is needed: gemma4-31b"):
        Source.find("gemma4-31b", None, None, "auto")
    with pytest.raises(FileNotFoundError, match=r"--draft-dir .*gone: no such"):
        Source.find("gemma4-tiny", None, tmp_path / "gone", "auto")
    with pytest.raises(CheckpointNotFoundError, match=r"holds no config\.json, so it is no draft"):
        Source.find("gemma4-tiny", None, tmp_path, "auto")
    with pytest.raises(CheckpointNotFoundError, match=r"--target-dir .*gone: no such"):
        Source.find("gemma4-tiny", tmp_path / "gone", None, "auto")
    assert Source.find("gemma4-31b", None, None, "dummy").target_dir is None
    with pytest.raises(SettingError, match="--dummy-layers: a checkpoint has its own"):
        Source.find("gemma4-tiny", None, None, "auto", 2)


def test_a_shipped_head_is_taken_unless_something_else_is_asked_for() -> None:
    shipped = Source.find("gemma4-tiny", None, None, "auto")
    assert (shipped.target_dir, shipped.draft_dir) == (TINY.target_dir, TINY.draft_dir)
    assert shipped.has_head
    alone = Source.find("gemma4-tiny", None, None, "auto", drafter="ngram")
    assert (alone.target_dir, alone.draft_dir) == (TINY.target_dir, None)
    assert not alone.has_head


def test_a_head_that_ships_alone_drafts_for_the_target_of_its_name(tmp_path: Path) -> None:
    target = save(random_pre_norm("llama"), tmp_path)
    head = get_target("smollm2-135m").draft_dir
    assert Source.find("smollm2-135m", target, None, "auto").draft_dir == head
    for name, drafter in (("smollm2-135m", "ngram"), ("auto", "auto"), ("llama-3.2-1b", "auto")):
        assert not Source.find(name, target, None, "auto", drafter=drafter).has_head


def test_a_target_without_a_head_is_drafted_for_by_lookup() -> None:
    alone = Source.find("gemma4-tiny", TINY.target_dir, None, "auto")
    assert (alone.draft_dir, alone.drafter, alone.has_head) == (None, "ngram", False)
    again = Source.find("gemma4-tiny", TINY.target_dir, None, "auto", drafter=alone.drafter)
    assert again == alone


@pytest.mark.parametrize("asked", ["auto", "eagle3"])
def test_a_head_that_is_named_drafts(asked: str) -> None:
    source = Source.find("gemma4-tiny", TINY.target_dir, TINY.draft_dir, "auto", drafter=asked)
    assert source.has_head and source.draft_dir == TINY.draft_dir


@pytest.mark.parametrize(("asked", "found"), [("auto", "eagle3"), ("ngram", "ngram")])
def test_a_dummy_has_a_head_unless_none_is_asked_for(asked: str, found: str) -> None:
    assert Source.find("gemma4-31b", None, None, "dummy", drafter=asked).drafter == found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"drafter": "eagle3"}, "--draft-dir is needed: eagle3 is read from"),
        ({"drafter": "telepathy"}, "--drafter telepathy: known are auto, "),
        (
            {"drafter": "ngram", "draft_dir": TINY.draft_dir},
            "--drafter ngram reads no head: leave out --draft-dir",
        ),
        ({"tap_layers": (1, 2, 3)}, "--tap-layers: there is no head, name one with --draft-dir"),
        ({"draft_quant": "int8"}, "--draft-quant: there is no head, name one with --draft-dir"),
    ],
)
def test_a_head_is_named_or_nothing_is_said_of_one(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Source.find(
            "gemma4-tiny", TINY.target_dir, load_format="auto", **{"draft_dir": None} | asked
        )
