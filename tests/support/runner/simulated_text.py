"""Texts as a schedule sees them: the rank of the right draft at each depth from each position."""

import random
from collections.abc import Callable, Sequence
from typing import cast

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import MeasuredCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Outcome, Round
from eagle_aot.runtime_runner.decode.shape import (
    AUTO_CHAINS,
    AUTO_TREES,
    MAX_AUTO_DEPTH,
    PLAIN,
    Shape,
)
from support.runner.toy import TAIL, RecordingDrafter, ToyTarget

Rates = Callable[[int], Sequence[float]]
"""Acceptance rates of a chain by depth, from the position in the text."""
Ranks = Sequence[int]
NONE = 16
"""The rank of a token that no tree drafts."""


def costs_of(
    chains: Sequence[float], catch_up: tuple[float, float], trees: Sequence[float] = ()
) -> MeasuredCosts:
    """Make costs of `AUTO_CHAINS` and the first `AUTO_TREES` in milliseconds, at any position."""
    milliseconds = zip([*AUTO_CHAINS, *AUTO_TREES], [*chains, *trees], strict=False)
    one, most = catch_up
    return MeasuredCosts(
        positions=(0, 1000),
        rounds={shape: (1e-3 * ms, 1e-3 * ms) for shape, ms in milliseconds},
        catch_up_rows=128,
        catch_up=(1e-3 * one, 1e-3 * most),
    )


def price(costs: MeasuredCosts, shape: Shape, position: int = 0) -> float:
    """Return the cost of a round in plain rounds."""
    return costs.seconds(shape, position) / costs.seconds(PLAIN, position)


def chain_text(rates: Rates, length: int, seed: int) -> list[Ranks]:
    """Draws a text in which a chain has these acceptance rates, and no sibling is right."""
    return ranked_text(lambda position: [[rate] for rate in rates(position)], length, seed)


def ranked_text(
    rates: Callable[[int], Sequence[Sequence[float]]], length: int, seed: int
) -> list[Ranks]:
    """Draws a text from the chances of each rank at each depth."""
    rng, text = random.Random(seed), list[Ranks]()
    for position in range(length):
        chances = rates(position)
        drawn = [rng.choices(range(len(c) + 1), [*c, 1 - sum(c)])[0] for c in chances]
        text.append([r if r < len(c) else NONE for r, c in zip(drawn, chances, strict=True)])
    return text


def first_right(count: int) -> Ranks:
    """Return ranks with which the first `count` drafts of a chain are right."""
    return [0] * count + [NONE] * (MAX_AUTO_DEPTH - count)


def accepted_drafts(shape: Shape, ranks: Ranks) -> int:
    """Return how many drafts of a shape are accepted: a tree has `topk` siblings at the first
    depth, half as many after the likeliest drafts, and a quarter after any other one."""
    siblings = shape.topk
    for depth, rank in enumerate(ranks[: shape.depth]):
        if rank >= siblings:
            return depth
        siblings = max(shape.topk // (4 if any(ranks[: depth + 1]) else 2), 1)
    return shape.depth


def outcome_of(shape: Shape, ranks: Ranks) -> Outcome:
    """Return the outcome of a round."""
    accepted = accepted_drafts(shape, ranks)
    path = () if shape.is_chain else (0, *ranks[:accepted])
    return Outcome(accepted, [0] * (accepted + 1), ranks=path)


def fixed_price(costs: MeasuredCosts, text: Sequence[Ranks], shape: Shape) -> float:
    """Return the cost of a text with one shape, in plain rounds."""
    total, position = 0.0, 0
    while position < len(text):
        total += price(costs, shape, position)
        position += accepted_drafts(shape, text[position]) + 1
    return total


class Simulation:
    """Rounds that only pass time, and a backlog whose drafter knows the text."""

    def __init__(self, costs: MeasuredCosts, text: Sequence[Ranks]) -> None:
        """`costs` are what rounds really cost."""
        self.costs, self.text = costs, text
        self.capacity = costs.catch_up_rows
        drafter, running = RecordingDrafter([], [True]), BatchState([0], TAIL, "cpu")
        self.rounds = [Round(ToyTarget(0, 16, 9), drafter, s, running) for s in costs.rounds]
        self.price = 0.0  # so far, in plain rounds
        self.position = 0

    def schedule(self, chooser: Chooser) -> AdaptiveSchedule:
        """Return a schedule of these rounds."""
        return AdaptiveSchedule(self.rounds, cast(Backlog, self), chooser)

    def clear(self) -> None:
        """There is nothing to forget."""

    def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
        """Return whether the first draft would have been right, from position `first` on."""
        assert first + len(tokens) == self.position and len(tokens) <= self.capacity
        plain = self.costs.seconds(PLAIN, self.position)
        self.price += self.costs.catch_up_seconds(len(tokens)) / plain
        return [ranks[0] == 0 for ranks in self.text[first : self.position]]

    def play(self, shape: Shape) -> Outcome:
        """Play a round."""
        outcome = outcome_of(shape, self.text[self.position])
        self.price += price(self.costs, shape, self.position)
        self.position += outcome.accepted + 1
        return outcome


def chosen_price(
    costs: MeasuredCosts,
    text: Sequence[Ranks],
    chooser: Chooser,
    noise: Callable[[], float] = lambda: 1.0,
    ahead: bool = True,
) -> float:
    """Return the cost of a text with chosen shapes, in plain rounds, catching up included.

    The chooser sees the times of rounds multiplied by `noise`. With `ahead` it plans the next run
    while a round is in flight.
    """
    simulation = Simulation(costs, text)
    schedule = simulation.schedule(chooser)
    schedule.begin(0)
    while (remaining := len(text) - simulation.position) > 0:
        round_ = schedule.choose(remaining)
        seconds = costs.seconds(round_.shape, simulation.position) * noise()
        outcome = simulation.play(round_.shape)
        if ahead:
            schedule.plan_next(remaining)
        tokens = [0] * min(outcome.accepted + 1, remaining)
        schedule.observe(round_, outcome, tokens, seconds)
    return simulation.price
