"""A text as the choice of chain lengths sees it: how many drafts would be right at each place."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

from eagle_aot.runtime_runner.adaptive import schedule
from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLength
from eagle_aot.runtime_runner.adaptive.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.rounds.round import Round, Running
from support.runner.toy import TAIL, ToyTarget

LONGEST = 7
Rates = Callable[[int], Sequence[float]]


def right_drafts(rates: Rates, length: int, seed: int) -> list[int]:
    """At each place of a text, drawn from the chance of each draft if all before it are right."""
    rng = random.Random(seed)
    text = []
    for place in range(length):
        right = 0
        while right < LONGEST and rng.random() < rates(place)[right]:
            right += 1
        text.append(right)
    return text


def fixed_price(costs: RoundCosts, text: Sequence[int], chain_len: int) -> float:
    """Plain rounds that a text takes with one chain length."""
    price, place = 0.0, 0
    while place < len(text):
        price += costs.price(chain_len, place)
        place += min(chain_len, text[place]) + 1
    return price


class Simulation:
    """Rounds that only pass time, and a backlog whose drafter knows the text."""

    def __init__(self, costs: RoundCosts, text: Sequence[int]) -> None:
        self.costs, self.text = costs, text
        self.capacity = costs.rows
        self.rounds = [
            Round(ToyTarget(0, 16, 9), None, 0, Running([0], TAIL, "cpu")) for _ in costs.rounds
        ]
        for chain_len, round_ in enumerate(self.rounds):
            round_.chain_len = chain_len
        self.price = 0.0  # so far, in plain rounds
        self.now = 0.0  # what the chooser's clock shows, seconds
        self.place = 0

    def clear(self) -> None:
        """Nothing is kept."""

    def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
        """Whether the first draft would have been right, from place `first` on."""
        assert first + len(tokens) == self.place and len(tokens) <= self.capacity
        self.price += self.costs.price_of_catching_up(len(tokens), self.place)
        return [right > 0 for right in self.text[first : self.place]]

    def play(self, chain_len: int, noise: float) -> int:
        """A round, which takes its time with some noise: how many drafts were right."""
        accepted = min(chain_len, self.text[self.place])
        self.price += self.costs.price(chain_len, self.place)
        self.now += self.costs.seconds(chain_len, self.place) * noise
        self.place += accepted + 1
        return accepted


def chosen_price(
    costs: RoundCosts,
    text: Sequence[int],
    chooser: ChainLength,
    noise: Callable[[], float] = lambda: 1.0,
) -> float:
    """Plain rounds that a text takes with chosen chain lengths, looks at plain tokens included.

    `costs` are what rounds really cost; the chooser sees them times `noise`.
    """
    simulation = Simulation(costs, text)
    adaptive = AdaptiveSchedule(simulation.rounds, cast(Backlog, simulation), chooser)
    with patch.object(schedule, "time", SimpleNamespace(perf_counter=lambda: simulation.now)):
        adaptive.begin(0)
        while (left := len(text) - simulation.place) > 0:
            round_ = adaptive.choose(left)
            accepted = simulation.play(round_.chain_len, noise())
            adaptive.observe(round_, accepted, [0] * min(accepted + 1, left))
    return simulation.price
