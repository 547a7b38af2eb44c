"""Requests that an artifact cannot serve are refused before anything runs."""

from typing import Any

import pytest

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.runtime_runner.decode.shape import AUTO, Shape
from eagle_aot.runtime_runner.engine.request_checks import (
    all_stop_ids,
    check_prompt,
    chosen_chain_len,
    chosen_tree,
)
from support.files.artifact import CONSTANTS


@pytest.mark.parametrize(("ids", "message"), [
    ([], "the prompt is empty"),
    ([True], "prompt ids must be integers"),
    ([1, 32], r"prompt ids 1\.\.32 leave the vocabulary of 32"),
    ([-1], r"prompt ids -1\.\.-1 leave the vocabulary of 32"),
    ([1] * 64, "has 64 tokens and the context 64: shorten the prompt"),
])  # fmt: skip
def test_a_prompt_of_impossible_ids_is_refused(ids: list[int], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        check_prompt(ids, CONSTANTS)
    check_prompt([0, 31] * 31, CONSTANTS)


@pytest.mark.parametrize("stop", [-5, 32, 1 << 65])
def test_a_stop_id_outside_the_vocabulary_is_refused(stop: int) -> None:
    with pytest.raises(SettingError, match=f"stop id {stop} is outside the vocabulary of 32"):
        all_stop_ids([3, stop], CONSTANTS)


def test_stop_ids_are_added_to_those_of_the_artifact() -> None:
    assert all_stop_ids([31], CONSTANTS) == {1, 4, 31}
    assert all_stop_ids([31], CONSTANTS, ignore_eos=True) == {31}


@pytest.mark.parametrize("length", [0, 16, -1])
def test_a_chain_that_fits_no_tail_is_refused(length: int) -> None:
    with pytest.raises(SettingError, match=f"chain length {length}: this artifact takes 1 to 15"):
        chosen_chain_len(length, CONSTANTS)


def test_the_chain_length_has_a_default() -> None:
    assert [chosen_chain_len(k, CONSTANTS) for k in (None, 15, AUTO)] == [4, 15, "auto"]


@pytest.mark.parametrize("tree", [(6, 8), (6.0, 8, 32), (6, 8, "32"), 6])
def test_a_tree_of_other_types_is_refused(tree: Any) -> None:
    with pytest.raises(SettingError, match=r"expected \(depth, top-k, nodes\), or a file"):
        chosen_tree(tree, "eagle3", True, CONSTANTS)


def test_a_drafter_of_chains_takes_no_tree() -> None:
    with pytest.raises(SettingError, match="tree 6,8,32: drafter 'ngram' proposes chains"):
        chosen_tree((6, 8, 32), "ngram", False, CONSTANTS)
    assert chosen_tree((4, 1, 4), "ngram", False, CONSTANTS) == Shape.chain(4)
    assert chosen_tree("6,8,32", "eagle3", True, CONSTANTS) == Shape(6, 8, 32)
