"""`tree="auto"` over a toy model whose likeliest drafts are wrong, and the second ones right."""

from collections.abc import Sequence

import pytest

from eagle_aot.lab.invariants import check_invariants
from eagle_aot.runtime_runner.adaptive.costs import FIRST_ROUNDS
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.engine import Engine, Finished, Tokens
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.program.executor import Call
from support.runner.chosen import request_of, schedule_over
from support.runner.toy import (
    MAX_ROWS,
    TAIL,
    VOCAB,
    SeeingDrafter,
    ToyTarget,
    next_token,
    plain_text,
)
from support.runner.waiting import Waiting

SEED, ROOM = 11, 120


class Second(SeeingDrafter):
    """Whose chains are all wrong."""

    def _tree(self, text: list[int], parents: Sequence[int]) -> list[int]:
        texts = [text]
        for i, parent in enumerate(parents):
            rank, before = parents[:i].count(parent), texts[parent]
            texts.append([*before, (next_token(before, SEED) + rank - 1) % VOCAB])
        return [text[-1] for text in texts[1:]]


def engine_of(sequences: int, *, recorded: bool, waits: bool = False) -> Engine:
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    running = BatchState(range(sequences), TAIL, "cpu")

    def record(step: Call) -> Call:
        step()
        return step

    drafter = Second(target, [False])
    rounds = Rounds(target, drafter, running, MAX_ROWS, record if recorded else None)
    return (Waiting if waits else Engine)(schedule_over(rounds))


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_trees_are_taken_and_the_text_is_plain(sequences: int, recorded: bool, waits: bool) -> None:
    engine = engine_of(sequences, recorded=recorded, waits=waits)
    numbers = [engine.add(request_of([i], ROOM, "auto", tree="auto")) for i in range(sequences)]
    got: dict[int, list[int]] = {number: [] for number in numbers}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Tokens):
                got[event.request] += event.tokens
            elif isinstance(event, Finished):
                shapes = event.stats.rounds_by_shape
                assert sum(shapes.values()) == event.stats.rounds
                trees = [n for shape, n in shapes.items() if shape.startswith("tree")]
                assert max(trees, default=0) >= FIRST_ROUNDS
                assert event.stats.accepted == sum(event.stats.accepted_at_rank)
        check_invariants(engine)
    for i, number in enumerate(numbers):
        assert got[number] == plain_text([i], SEED, ROOM)


def test_a_chain_beside_chosen_trees_takes_its_likeliest_drafts_alone() -> None:
    """Which are wrong, here: so none of it is accepted, and the others' trees are."""
    engine = engine_of(2, recorded=False)
    chain = engine.add(request_of([1], ROOM, "auto"))
    tree = engine.add(request_of([2], ROOM, "auto", tree="auto"))
    stats = {}
    while engine.busy:
        stats |= {e.request: e.stats for e in engine.step() if isinstance(e, Finished)}
    assert stats[chain].accepted == 0 < stats[tree].accepted
    assert not sum(stats[chain].offered_at_rank[1:])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("steps", range(3, 12))
def test_who_joins_has_the_drafts_that_it_asked_for(waits: bool, steps: int) -> None:
    """Whatever was thought of while it was not there."""
    engine = engine_of(3, recorded=False, waits=waits)
    for i in range(2):
        engine.add(request_of([i], ROOM, "auto"))
    for _ in range(steps):
        engine.step()
    joining, drafted = engine.add(request_of([5], 20, 5)), []
    while engine.busy:
        found = [e for e in engine.step() if isinstance(e, Tokens) and e.request == joining]
        drafted += [event.drafted for event in found]
    assert set(drafted[1:]) == {5}
