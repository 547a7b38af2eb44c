"""A text as the choice of chain lengths sees it: how many drafts would be right at each place."""

import random
from collections.abc import Callable, Sequence

from eagle_aot.runtime_runner.chain_length import ChainLength
from eagle_aot.runtime_runner.round_costs import RoundCosts

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


def chosen_price(
    costs: RoundCosts,
    text: Sequence[int],
    chooser: ChainLength,
    noise: Callable[[], float] = lambda: 1.0,
) -> float:
    """Plain rounds that a text takes with chosen chain lengths, looks at plain tokens included.

    `costs` are what rounds really cost; the chooser sees them times `noise`.
    """
    price, place, pending = 0.0, 0, 0
    chooser.begin()
    while place < len(text):
        if pending and chooser.wants_to_look(pending, place):
            price += costs.price_of_catching_up(pending, place)
            chooser.observe_plain([right > 0 for right in text[place - pending : place]], place)
            pending = 0
        skipped = pending == costs.rows
        if skipped:
            chooser.skip_plain()
            pending = 0
        left = len(text) - place
        chain_len = 0 if pending or skipped else chooser.choose(left, place)
        accepted = min(chain_len, text[place])
        price += costs.price(chain_len, place)
        seconds = costs.seconds(chain_len, place) * noise()
        chooser.observe(chain_len, accepted, min(accepted + 1, left), place, seconds)
        pending += chain_len == 0
        place += accepted + 1
    return price
