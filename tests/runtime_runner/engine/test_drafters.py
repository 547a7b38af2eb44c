"""Drafters that take turns over a toy model: each was shown all of a text that it drafts for."""

import itertools
import random
from collections.abc import Iterable

import pytest

from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.engine.drafters import ChosenDrafter
from eagle_aot.runtime_runner.engine.invariants import check_invariants
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.schedule import SharedRounds
from eagle_aot.runtime_runner.rounds.round import Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from support.runner.chosen import request_of
from support.runner.following import Followed, Following
from support.runner.requests import Requests
from support.runner.toy import MAX_ROWS, TAIL, VOCAB, plain_text

SEED = 11
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6] * 8


class Served(Requests):
    """By an engine over two drafters."""

    def __init__(
        self, sequences: int, names: Iterable[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of the drafters chosen one after another, over and over."""
        target = Followed(SEED, 16, 9, sequences=sequences)
        running = Running(range(sequences), TAIL, "cpu")
        self.drafters = {"good": Following(target, [True]), "bad": Following(target, [False, True])}
        schedules = {
            name: SharedRounds(
                Rounds(target, drafter, running, MAX_ROWS, None),
                lambda trees: pytest.fail("nobody asked for auto"),
            )
            for name, drafter in self.drafters.items()
        }
        self.schedule = ChosenDrafter(schedules)
        chosen = itertools.cycle(names)
        monkeypatch.setattr(self.schedule._chooser, "choose", lambda places: next(chosen))
        super().__init__(Engine(self.schedule))
        self.engine.after_step = check_invariants

    def add(self, prompt: list[int], room: int, shape: Shape, *, reuse: bool) -> int:
        how = {"tree": None if shape.is_chain else shape, "reuse": reuse}
        return self.ask(request_of(prompt, room, shape.depth, **how))


@pytest.mark.parametrize("sequences", [1, 3])
def test_texts_are_their_own_whoever_drafts(
    sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(sequences)
    served = Served(sequences, rng.choices(["good", "bad"], k=50), monkeypatch)
    shapes = Shape.chain(0), Shape.chain(1), Shape.chain(3), Shape(3, 2, 7)
    while len(served.prompts) < 60 or served.engine.busy:
        if len(served.prompts) < 60 and rng.random() < 0.15:
            prompt = [*SYSTEM[: rng.randrange(1, 60)], *rng.choices(range(VOCAB), k=9)]
            served.add(prompt, rng.randrange(1, 24), rng.choice(shapes), reuse=rng.random() < 0.5)
        served.step()
    for number, prompt in served.prompts.items():
        found = served.tokens[number]
        assert found == plain_text(prompt, SEED, len(found))
    assert {end.drafter for end in served.ends.values()} == {"good", "bad", None}
    assert all(drafter.proposals for drafter in served.drafters.values())
    assert any(end.kept for end in served.ends.values())


@pytest.mark.parametrize("fastest", ["bad", "good", None])
def test_a_text_that_goes_on_keeps_the_fastest_drafter(
    fastest: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another one is, or not all are known, it is drafted anew."""
    served = Served(2, ["bad", "good"], monkeypatch)
    monkeypatch.setattr(served.schedule._chooser, "settled", lambda places: fastest)
    text, found = list(SYSTEM), list[str | None]()
    for _ in range(6):
        number = served.add(text, 5, Shape.chain(3), reuse=True)
        served.finish()
        found.append(served.ends[number].drafter)
        text += served.tokens[number]
    told = {"bad": ["bad"] * 6, "good": ["bad"] + ["good"] * 5, None: ["bad", "good"] * 3}
    assert found == told[fastest]
    assert (served.ends[number].kept > len(SYSTEM)) == (fastest is not None)


@pytest.mark.parametrize(("second", "kept"), [("good", True), ("bad", False)])
def test_a_change_forgets_what_the_other_was_shown(
    second: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(2, ["good", second], monkeypatch)
    for begun in (SYSTEM, [0, *SYSTEM], SYSTEM):  # the second goes on from nothing
        number = served.add(begun, 4, Shape.chain(3), reuse=True)
        served.finish()
    assert (served.ends[number].kept > 0) == kept
    assert served.ends[number].drafter == (second if kept else "good")
