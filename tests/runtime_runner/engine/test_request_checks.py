"""Requests that an artifact cannot serve are refused, and requests may choose their trees."""

from collections.abc import Sequence
from typing import Any

import pytest

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.lab.invariants import check_invariants
from eagle_aot.runtime_runner.adaptive.costs import FIRST_ROUNDS
from eagle_aot.runtime_runner.decode.shape import AUTO, Shape
from eagle_aot.runtime_runner.engine import Engine, Tokens
from eagle_aot.runtime_runner.engine.request_checks import (
    all_stop_ids,
    check_prompt,
    chosen_chain_len,
    chosen_tree,
)
from support.files.artifact import CONSTANTS
from support.runner.engines import (
    Requests,
    WaitingEngine,
    adaptive_schedule_over,
    record,
    request_of,
    rounds_over,
)
from support.runner.toy import VOCAB, SeeingDrafter, ToyTarget, next_token, plain_text


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


SEED, LENGTH = 11, 120


class SecondIsRight(SeeingDrafter):
    """All its chains are wrong."""

    def _tree(self, text: list[int], parents: Sequence[int]) -> list[int]:
        texts = [text]
        for i, parent in enumerate(parents):
            rank, before = parents[:i].count(parent), texts[parent]
            texts.append([*before, (next_token(before, SEED) + rank - 1) % VOCAB])
        return [text[-1] for text in texts[1:]]


def engine_of(sequences: int, *, recorded: bool, waits: bool = False) -> Engine:
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    drafter = SecondIsRight(target, [False])
    rounds = rounds_over(target, drafter, record if recorded else None)
    return (WaitingEngine if waits else Engine)(adaptive_schedule_over(rounds, drafter))


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_chosen_trees_give_the_plain_text(sequences: int, recorded: bool, waits: bool) -> None:
    requests = Requests(engine_of(sequences, recorded=recorded, waits=waits), check_invariants)
    for i in range(sequences):
        requests.add(request_of([i], LENGTH, "auto", tree="auto"))
    requests.finish()
    for number, end in requests.ends.items():
        assert requests.tokens[number] == plain_text([number], SEED, LENGTH)
        shapes = end.stats.rounds_by_shape
        assert sum(shapes.values()) == end.stats.rounds
        trees = [n for shape, n in shapes.items() if shape.startswith("tree")]
        assert max(trees, default=0) >= FIRST_ROUNDS
        assert end.stats.accepted == sum(end.stats.accepted_at_rank)


def test_a_chain_next_to_chosen_trees_takes_its_likeliest_drafts_alone() -> None:
    """They are wrong, so none is accepted, while the other request's trees are."""
    requests = Requests(engine_of(2, recorded=False), check_invariants)
    chain = requests.add(request_of([1], LENGTH, "auto"))
    tree = requests.add(request_of([2], LENGTH, "auto", tree="auto"))
    requests.finish()
    stats = {number: end.stats for number, end in requests.ends.items()}
    assert stats[chain].accepted == 0 < stats[tree].accepted
    assert not sum(stats[chain].offered_at_rank[1:])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("steps", range(3, 12))
def test_a_request_that_joins_has_the_drafts_that_it_requests(waits: bool, steps: int) -> None:
    """Whatever was planned before it was there."""
    engine = engine_of(3, recorded=False, waits=waits)
    for i in range(2):
        engine.add(request_of([i], LENGTH, "auto"))
    for _ in range(steps):
        engine.step()
        check_invariants(engine)
    joining, drafted = engine.add(request_of([5], 20, 5)), list[int]()
    while engine.busy:
        events = [e for e in engine.step() if isinstance(e, Tokens) and e.request == joining]
        check_invariants(engine)
        drafted += [event.drafted for event in events]
    assert set(drafted[1:]) == {5}
