"""When the rounds of a request that runs alone are chosen, and when the drafter catches up."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from eagle_aot.runtime_runner.adaptive.chooser import PLAIN_RUN, RUN, Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable
from eagle_aot.runtime_runner.decode.shape import AUTO_CHAINS, MAX_AUTO_DEPTH, PLAIN, Shape
from support.runner.simulated_text import Ranks, Simulation, costs_of, first_right

COSTS = costs_of([1.0, 1.3, 1.32, 1.34, 1.36, 1.38, 1.4], (0.01, 0.05))


class LoggingChooser(Chooser):
    """Logs the remaining tokens that runs are chosen with."""

    def __init__(self, costs: CostTable) -> None:
        super().__init__(costs)
        self.log: list[int] = []

    def choose_run(
        self, shapes: Sequence[Shape], position: int, remaining_tokens: int, pending: float = 0.0
    ) -> tuple[Shape, int]:
        self.log.append(remaining_tokens)
        return super().choose_run(shapes, position, remaining_tokens, pending)


class Play:
    """A schedule that decodes a text."""

    def __init__(self, text: list[Ranks]) -> None:
        self.simulation = Simulation(COSTS, text)
        self.catch_ups: list[int] = []
        self.chooser = LoggingChooser(CostTable(COSTS))
        self.schedule = self.simulation.schedule(self.chooser)
        self.schedule.begin(0)

    @property
    def remaining(self) -> int:
        return len(self.simulation.text) - self.simulation.position

    def round(self, *, ahead: bool = True) -> Shape:
        remaining = self.remaining
        round_ = self.schedule.choose(remaining)
        outcome = self.simulation.play(round_.shape)
        if ahead:
            self.schedule.plan_next(remaining)
        tokens = [0] * min(outcome.accepted + 1, remaining)
        self.schedule.observe(round_, outcome, tokens, COSTS.seconds(round_.shape, 0))
        return round_.shape


def test_the_next_run_is_chosen_during_the_last_round_of_a_run() -> None:
    play = Play([first_right(MAX_AUTO_DEPTH)] * 200)
    assert play.round() == AUTO_CHAINS[-1]
    play.chooser.log.clear()
    for _ in range(RUN - 2):
        play.round()
    assert not play.chooser.log
    remaining = play.remaining
    play.round()
    assert play.chooser.log == [remaining - 1]
    play.round()
    assert play.chooser.log == [remaining - 1], "chosen before"


def test_without_planning_ahead_each_run_is_chosen_before_its_first_round() -> None:
    play = Play([first_right(MAX_AUTO_DEPTH)] * 200)
    for _ in range(2 * RUN):
        play.round(ahead=False)
    assert len(play.chooser.log) == 2


@pytest.mark.parametrize("ahead", [True, False])
def test_no_round_is_deeper_than_the_rest_of_the_request(ahead: bool) -> None:
    play = Play([first_right(MAX_AUTO_DEPTH)] * 61)
    while play.remaining > 0:
        remaining = play.remaining
        shape = play.round(ahead=ahead)
        assert shape == PLAIN or shape.depth < remaining


def test_the_drafter_catches_up_after_more_and_more_plain_rounds() -> None:
    """Of a text in which no draft is right."""
    play = Play([first_right(0)] * 400)
    missed, caught_up = play.schedule.first_unobserved_row, []
    for position in range(300):
        play.round()
        before, missed = missed, play.schedule.first_unobserved_row
        if before is not None and missed != before:
            caught_up.append(position)
    lengths = [b - a for a, b in pairwise(caught_up)]
    assert lengths[:3] == [2 * PLAIN_RUN, 4 * PLAIN_RUN, 8 * PLAIN_RUN]


def test_schedule_knows_rows_that_the_drafter_has_not_observed() -> None:
    play = Play([first_right(0)] * 400)
    while play.round() != PLAIN:
        assert play.schedule.first_unobserved_row is None
    assert play.schedule.first_unobserved_row == play.simulation.position - 1
    play.schedule.settle()
    assert play.schedule.first_unobserved_row is None


def test_a_request_may_begin_after_tokens_that_the_drafter_never_observed() -> None:
    play = Play([first_right(MAX_AUTO_DEPTH)] * 50)
    play.schedule.begin(0, first_unobserved_row=7)
    play.round()
    assert play.schedule.first_unobserved_row == 7


def test_trees_are_only_chosen_on_request() -> None:
    costs = costs_of([1.0, *[3.0] * 6], (0.1, 0.5), [1.0] * 5)
    simulation = Simulation(costs, [first_right(MAX_AUTO_DEPTH)] * 50)
    schedule = simulation.schedule(Chooser(CostTable(costs)))
    schedule.begin(0, trees=True)
    assert not schedule.choose(50).shape.is_chain
    schedule.begin(0, trees=False)
    assert schedule.choose(50).shape.is_chain
