"""A text as the choice of shapes sees it: at which rank the right drafts would be at each place."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

from eagle_aot.runtime_runner.adaptive import schedule
from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.next_token_probs import WIDTH, NextTokenProbs
from eagle_aot.runtime_runner.decode.round import BatchState, Outcome, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.toy import TAIL, RecordingDrafter, ToyTarget

LONGEST = 7
Rates = Callable[[int], Sequence[float]]
Ranks = Sequence[int]
"""Of the right draft at each depth, if all before it are accepted."""
NONE = WIDTH
"""The rank of a token that no tree drafts."""


def right_drafts(rates: Rates, length: int, seed: int) -> list[Ranks]:
    """At each place of a text, drawn from the chance of each draft if all before it are right."""
    return ranked_drafts(lambda place: [[rate] for rate in rates(place)], length, seed)


def ranked_drafts(
    rates: Callable[[int], Sequence[Sequence[float]]], length: int, seed: int
) -> list[Ranks]:
    """The same from the chances of each rank at each depth."""
    rng, text = random.Random(seed), []
    for place in range(length):
        chances = rates(place)
        drawn = [rng.choices(range(len(c) + 1), [*c, 1 - sum(c)])[0] for c in chances]
        text.append([r if r < len(c) else NONE for r, c in zip(drawn, chances, strict=True)])
    return text


def first_right(count: int) -> Ranks:
    """So many leading drafts of a chain."""
    return [0] * count + [NONE] * (LONGEST - count)


def width(shape: Shape, depth: int) -> int:
    """Siblings that a shape drafts behind what is accepted of it."""
    return shape.topk if not depth else (shape.topk + 1) // 2


def accepted_of(shape: Shape, ranks: Ranks) -> int:
    """Drafts of a shape that are right."""
    for depth in range(shape.depth):
        if ranks[depth] >= width(shape, depth):
            return depth
    return shape.depth


def fixed_price(costs: RoundCosts, text: Sequence[Ranks], shape: Shape) -> float:
    """Plain rounds that a text takes with one shape."""
    price, place = 0.0, 0
    while place < len(text):
        price += costs.price(shape, place)
        place += accepted_of(shape, text[place]) + 1
    return price


class Simulation:
    """Rounds that only pass time, and a backlog whose drafter knows the text.

    A token of the text is the rank that it has among what is expected in front of it.
    """

    def __init__(
        self, costs: RoundCosts, text: Sequence[Ranks], outlooks: Sequence[Sequence[float]] | None
    ) -> None:
        self.costs, self.text, self._outlooks = costs, text, outlooks
        self.capacity = costs.rows
        drafter, running = RecordingDrafter([], [True]), BatchState([0], TAIL, "cpu")
        self.rounds = [Round(ToyTarget(0, 16, 9), drafter, s, running) for s in costs.rounds]
        self.price = 0.0  # so far, in plain rounds
        self.now = 0.0  # what the chooser's clock shows, seconds
        self.place = 0

    def clear(self) -> None:
        """Nothing is kept."""

    def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
        """Whether the first draft would have been right, from place `first` on."""
        assert first + len(tokens) == self.place and len(tokens) <= self.capacity
        self.price += self.costs.price_of_catching_up(len(tokens), self.place)
        return [ranks[0] == 0 for ranks in self.text[first : self.place]]

    def play(self, shape: Shape, noise: float) -> Outcome:
        """A round, which takes its time with some noise."""
        ranks = self.text[self.place]
        accepted = accepted_of(shape, ranks)
        self.price += self.costs.price(shape, self.place)
        self.now += self.costs.seconds(shape, self.place) * noise
        self.place += accepted + 1
        found = Outcome(
            accepted, [ranks[0], *[0] * accepted], next_token_probs=self._outlook(shape)
        )
        if shape.is_chain:
            return found
        offered_ranks = [2 ** width(shape, depth) - 1 for depth in range(shape.depth)]
        return found._replace(ranks=[0, *ranks[:accepted]], offered_ranks=[*offered_ranks, 0])

    def _outlook(self, shape: Shape) -> NextTokenProbs | None:
        if self._outlooks is None or not shape.nodes or self.place >= len(self.text):
            return None
        return NextTokenProbs(range(WIDTH), self._outlooks[self.place])


def chosen_price(
    costs: RoundCosts,
    text: Sequence[Ranks],
    chooser: Chooser,
    noise: Callable[[], float] = lambda: 1.0,
    outlooks: Sequence[Sequence[float]] | None = None,
    ahead: bool = True,
) -> float:
    """Plain rounds that a text takes with chosen shapes, looks at plain tokens included.

    `costs` are what rounds really cost; the chooser sees them times `noise`. `outlooks` are what
    the drafter expects at each place, by rank. It thinks `ahead` where it has the time.
    """
    simulation = Simulation(costs, text, outlooks)
    adaptive = AdaptiveSchedule(simulation.rounds, cast(Backlog, simulation), chooser)
    with patch.object(schedule, "time", SimpleNamespace(perf_counter=lambda: simulation.now)):
        adaptive.begin(0)
        while (left := len(text) - simulation.place) > 0:
            round_ = adaptive.choose(left)
            outcome = simulation.play(round_.shape, noise())
            if ahead:
                adaptive.plan_next(left)
            adaptive.observe(round_, outcome, [0] * min(outcome.accepted + 1, left))
    return simulation.price
