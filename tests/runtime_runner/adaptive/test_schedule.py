"""When the next round is thought over, and by what."""

from typing import cast

import pytest

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import RUN, Chooser
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.simulated_text import LONGEST, Simulation, first_right

CHAINS = [Shape.chain(k) for k in range(LONGEST + 1)]


class Told(Chooser):
    """Remembers what it is asked, and for what, in turn."""

    def __init__(self, costs: RoundCosts) -> None:
        super().__init__(costs)
        self.calls: list[tuple[str, object]] = []

    def plan_next(self, left: int, position: int, under_way: Shape | None = None) -> None:
        self.calls.append(("think", (left, position, under_way)))
        super().plan_next(left, position, under_way)

    def decide(self, next_token_probs: NextTokenProbs | None) -> tuple[Shape, int]:
        self.calls.append(("decide", next_token_probs))
        return super().decide(next_token_probs)


class Play:
    """A text whose drafts are all right, and the schedule that decodes it."""

    def __init__(self, plain_ms: float) -> None:
        seconds = {shape: 2 * (1e-3 * (plain_ms + 0.01 * shape.nodes),) for shape in CHAINS}
        costs = RoundCosts(positions=(0, 1000), rounds=seconds, rows=64, catch_up=(1e-3, 2e-3))
        self.sim = Simulation(costs, [first_right(LONGEST)] * 200, [[0.9] * 8] * 200)
        self.chooser = Told(costs)
        backlog = cast(Backlog, self.sim)
        self.schedule = AdaptiveSchedule(self.sim.rounds, backlog, self.chooser)
        self.schedule.begin(0)

    def round(self, left: int, *, ahead: bool) -> tuple[Shape, Outcome]:
        """One of them."""
        round_ = self.schedule.choose(left)
        outcome = self.sim.play(round_.shape, 1.0)
        if ahead:
            self.schedule.plan_next(left)
        self.schedule.observe(round_, outcome, [0] * min(outcome.accepted + 1, left))
        return round_.shape, outcome


def test_what_follows_a_run_is_thought_over_during_its_last_round() -> None:
    play = Play(plain_ms=1.0)
    shape, _ = play.round(150, ahead=True)
    assert shape == CHAINS[LONGEST]
    play.chooser.calls.clear()
    for place in range(1, RUN - 1):
        play.round(150 - 8 * place, ahead=True)
    assert not play.chooser.calls
    play.round(100, ahead=True)
    assert play.chooser.calls == [("think", (99, 8 * (RUN - 1), shape))]
    play.round(90, ahead=True)
    assert [name for name, _ in play.chooser.calls] == ["think", "decide"]


def test_each_long_round_is_decided_by_what_is_expected_behind_the_one_before() -> None:
    play = Play(plain_ms=10.0)
    for _ in range(RUN):  # the first ones, of which nothing is expected yet
        _, outcome = play.round(150, ahead=True)
    play.chooser.calls.clear()
    play.round(140, ahead=True)
    assert outcome.next_token_probs is not None
    assert [name for name, _ in play.chooser.calls] == ["decide", "think"]
    assert play.chooser.calls[0] == ("decide", outcome.next_token_probs)


@pytest.mark.parametrize("ahead", [True, False])
def test_no_round_is_deeper_than_a_text_has_room_for(ahead: bool) -> None:
    """Whatever was thought of before it was known how much the round under way brings."""
    play, left = Play(plain_ms=10.0), 60
    while left > 0:
        shape, outcome = play.round(left, ahead=ahead)
        assert shape == PLAIN or shape.depth < left
        left -= outcome.accepted + 1


def test_nothing_is_thought_over_in_plain_rounds() -> None:
    """What follows them depends on whether the head catches up."""
    play = Play(plain_ms=1.0)
    play.schedule._run, play.schedule._run_left = play.schedule.rounds[PLAIN], 1
    play.round(100, ahead=True)
    assert not play.chooser.calls
