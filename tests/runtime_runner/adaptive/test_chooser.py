"""The choice of shapes, on texts whose drafts are right with known chances."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.chooser import SHARE, START, Chooser
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN, TREES
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.simulated_text import (
    LONGEST,
    NONE,
    Rates,
    chosen_price,
    first_right,
    fixed_price,
    ranked_drafts,
    right_drafts,
)

LENGTH = 6000  # tokens
CHAINS = [Shape.chain(k) for k in range(LONGEST + 1)]


def table(
    rounds: Sequence[float], one: float, many: float, trees: Sequence[float] = ()
) -> RoundCosts:
    """Of chains, and trees, the same at every position, in milliseconds."""
    shapes = zip([*CHAINS, *TREES], [*rounds, *trees], strict=False)
    return RoundCosts(
        positions=(0, 1000),
        rounds={shape: (1e-3 * ms, 1e-3 * ms) for shape, ms in shapes},
        rows=128,
        catch_up=(1e-3 * one, 1e-3 * many),
    )


# As measured: the 31B behind 8192 tokens with an INT4 head and with one in bfloat16, the shipped
# pair on two cores.
COSTS = {
    "31B": table([9.12, 9.5, 9.86, 10.2, 10.6, 10.95, 11.3, 11.7], 0.3, 1.0),
    "31B, slow drafts": table([9.12, 11.2, 13.2, 15.2, 17.2, 19.3, 21.3, 23.3], 1.94, 2.5),
    "shipped pair": table([1.5, 2.0, 2.46, 2.93, 3.4, 3.86, 4.33, 4.8], 0.26, 5.2),
}
TEXTS: dict[str, Rates] = {
    **{f"all {rate}": (lambda _, rate=rate: [rate] * LONGEST) for rate in
       (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)},
    "falling": lambda _: [0.8, 0.5, 0.3, 0.2, 0.1, 0.1, 0.1],
    "rising": lambda _: [0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.9],
    "easy, then hard": lambda place: [0.95 if place < LENGTH // 2 else 0.1] * LONGEST,
    "hard, then easy": lambda place: [0.1 if place < LENGTH // 2 else 0.95] * LONGEST,
    "in turn": lambda place: [0.95 if place // 500 % 2 else 0.1] * LONGEST,
}  # fmt: skip


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("rates", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("ahead", [True, False])
def test_it_is_about_as_fast_as_the_best_fixed_length(
    costs: RoundCosts, rates: Rates, ahead: bool
) -> None:
    text = right_drafts(rates, LENGTH, 0)
    fixed = [fixed_price(costs, text, k) for k in CHAINS]
    chosen = chosen_price(costs, text, Chooser(costs), ahead=ahead)
    assert chosen <= min(fixed) / 0.97
    assert chosen <= fixed[0] / 0.98


def test_it_is_faster_than_any_fixed_length_where_texts_differ() -> None:
    costs = COSTS["31B, slow drafts"]
    text = right_drafts(TEXTS["in turn"], LENGTH, 0)
    fixed = min(fixed_price(costs, text, k) for k in CHAINS)
    assert chosen_price(costs, text, Chooser(costs)) < 0.95 * fixed


def test_what_was_learned_helps_with_the_next_text() -> None:
    costs = COSTS["shipped pair"]
    hard, easy = [first_right(0)] * 60, [first_right(LONGEST)] * 60
    for text, chain_len in ((hard, 0), (easy, LONGEST)):
        chooser = Chooser(costs)
        for _ in range(21):
            chosen_price(costs, text, chooser)
        chooser.begin()
        assert chooser.choose(60, 0)[0].depth == chain_len


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_after_many_hard_texts_it_finds_that_others_are_easy(costs: RoundCosts) -> None:
    """All of them too short to learn much from."""
    hard, easy = TEXTS["all 0.1"], TEXTS["all 0.9"]
    chooser = Chooser(costs)
    for seed in range(30):
        chosen_price(costs, right_drafts(hard, 70, seed), chooser)
    texts = [right_drafts(easy, 50, seed) for seed in range(120)]
    chosen = sum(chosen_price(costs, text, chooser) for text in texts)
    fixed = min(sum(fixed_price(costs, text, k) for text in texts) for k in CHAINS)
    assert chosen <= fixed / 0.85


def dearer_by(costs: RoundCosts, factors: Mapping[Shape, float]) -> RoundCosts:
    """Where those shapes take so many times as long."""
    rounds = {
        shape: (low * factors.get(shape, 1.0), high * factors.get(shape, 1.0))
        for shape, (low, high) in costs.rounds.items()
    }
    return replace(costs, rounds=rounds)


@pytest.mark.parametrize("dearer", [1.0, 1.6])
def test_it_notices_when_drafting_costs_more_than_was_measured(dearer: float) -> None:
    """In noisy times, on a device that became slower for all rounds alike."""
    measured = COSTS["shipped pair"]
    costs = dearer_by(measured, dict.fromkeys(CHAINS[1:], dearer))
    rng = random.Random(2)
    text = right_drafts(TEXTS["all 0.6"], LENGTH, 0)
    fixed = min(fixed_price(costs, text, k) for k in CHAINS)
    noise = lambda: 2.0 * rng.lognormvariate(0.0, 0.2)  # noqa: E731
    assert chosen_price(costs, text, Chooser(measured), noise) <= fixed / 0.95


@pytest.mark.parametrize("seed", range(4))
def test_it_notices_which_shapes_cost_something_else_than_was_measured(seed: int) -> None:
    """Of texts that differ, so that all shapes are played now and then."""
    costs, rng = COSTS["31B, slow drafts"], random.Random(seed)
    measured = dearer_by(costs, {k: rng.lognormvariate(0.0, 0.15) for k in CHAINS[1:]})
    rates = [[rng.uniform(0.3, 0.95)] * LONGEST for _ in range(LENGTH // 100)]
    text = right_drafts(lambda place: rates[place // 100], LENGTH, seed)
    fixed = min(fixed_price(costs, text, k) for k in CHAINS)
    assert chosen_price(costs, text, Chooser(measured)) <= fixed / 0.9


# On a GPU rows are nearly free, on a CPU each is work.
FREE_ROWS = table(
    [9.12, 11.2, 13.2, 15.2, 17.2, 19.3, 21.3, 23.3], 1.94, 2.5, [17.5, 18.0, 23.0, 26.0]
)
DEAR_ROWS = table([9.0, 14.0, 18.0, 22.0, 26.0, 30.0, 34.0, 38.0], 3.0, 40.0, [36.0, 50.0, 110.0])
RANKED = {
    "many ways": [0.45, 0.2, 0.1, 0.1],
    "one way": [0.8, 0.01],
    "no way": [0.05, 0.05],
}


@pytest.mark.parametrize("costs", [FREE_ROWS, DEAR_ROWS], ids=["free rows", "dear rows"])
@pytest.mark.parametrize("rates", RANKED.values(), ids=RANKED)
@pytest.mark.parametrize("next_token_probs", [True, False])
def test_with_trees_it_is_about_as_fast_as_the_best_shape(
    costs: RoundCosts, rates: list[float], next_token_probs: bool
) -> None:
    text = ranked_drafts(lambda _: [rates] * LONGEST, LENGTH, 0)
    outlooks = [[*rates, *[0.001] * (8 - len(rates))]] * LENGTH if next_token_probs else None
    fixed = {shape: fixed_price(costs, text, shape) for shape in costs.rounds}
    chosen = chosen_price(costs, text, Chooser(costs), outlooks=outlooks)
    assert chosen <= min(fixed.values()) / 0.92
    assert chosen <= fixed[PLAIN] / 0.98


def test_it_takes_trees_where_they_pay_alone() -> None:
    text = ranked_drafts(lambda _: [RANKED["many ways"]] * LONGEST, LENGTH, 0)
    fixed = {shape: fixed_price(FREE_ROWS, text, shape) for shape in FREE_ROWS.rounds}
    chains = min(price for shape, price in fixed.items() if shape.is_chain)
    assert chosen_price(FREE_ROWS, text, Chooser(FREE_ROWS)) < 0.9 * chains


def test_what_the_head_expects_next_is_worth_something() -> None:
    """Of a text that is now certain and now open, and a head that knows when."""
    certain, open_ = [0.97, 0.01], [0.15, 0.1, 0.1, 0.1]
    rng = random.Random(1)
    kinds = [rng.random() < 0.5 for _ in range(LENGTH)]
    text = ranked_drafts(lambda at: [certain if kinds[at] else open_] * LONGEST, LENGTH, 0)
    heads = [certain if kind else open_ for kind in kinds]
    outlooks = [[*head, *[0.001] * (8 - len(head))] for head in heads]
    without = chosen_price(FREE_ROWS, text, Chooser(FREE_ROWS))
    assert chosen_price(FREE_ROWS, text, Chooser(FREE_ROWS), outlooks=outlooks) < 0.97 * without


PRICES = st.tuples(
    st.floats(1.0, 3.0), st.lists(st.floats(0.0, 1.0), min_size=LONGEST, max_size=LONGEST)
)
RANKS = st.lists(st.integers(0, NONE), min_size=LONGEST, max_size=LONGEST)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    PRICES,
    st.lists(st.floats(1.0, 9.0), max_size=len(TREES)),
    st.floats(0.0, 5.0),
    st.floats(0.0, 0.2),
    st.lists(st.lists(RANKS, min_size=1, max_size=100), min_size=1, max_size=4),
    st.sampled_from([0.1, 10.0]),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_it_never_falls_behind_plain_decoding_by_more_than_its_allowance(
    prices: tuple[float, list[float]],
    trees: list[float],
    one: float,
    row: float,
    texts: list[list[list[int]]],
    milliseconds: float,
    rng: random.Random,
    ahead: bool,
) -> None:
    """Whatever rounds cost, whichever drafts are right and whatever the head makes of them."""
    first, steps = prices
    rounds = [1.0, *(first + sum(steps[:k]) for k in range(LONGEST))]
    plain = [milliseconds * price for price in (*rounds, *trees, one, one + 127 * row)]
    costs = table(plain[: LONGEST + 1], *plain[-2:], plain[LONGEST + 1 : -2])
    chooser = Chooser(costs)
    spent = 0.0
    for text in texts:
        outlooks = [sorted((rng.random() for _ in range(8)), reverse=True) for _ in text]
        spent += chosen_price(costs, text, chooser, outlooks=outlooks, ahead=ahead)
    tokens = sum(map(len, texts))
    behind_the_end = LONGEST * len(texts)  # a last round may decide more than a text has room for
    assert (1 - SHARE) * spent <= tokens + START + behind_the_end + 1e-6


@pytest.mark.parametrize("costs", [*COSTS.values(), FREE_ROWS])
def test_the_last_token_is_not_drafted(costs: RoundCosts) -> None:
    chooser = Chooser(costs)
    chooser.begin()
    assert chooser.choose(1, 0)[0] == PLAIN


def test_drafts_count_as_far_as_there_is_room_for_them() -> None:
    """The longest chain is fast where all is accepted, a short one does where little is left."""
    costs = table([9.0, 9.1, *[12.0] * (LONGEST - 1)], 0.1, 0.2)
    chooser = Chooser(costs)
    for _ in range(100):
        chooser.observe(costs.longest, [Played(LONGEST, LONGEST + 1)], 0, None)
    assert chooser.choose(1000, 0)[0] == costs.longest
    assert chooser.choose(2, 0)[0] == CHAINS[1]


def test_a_deeper_tree_than_there_is_room_for_is_drafted_where_it_is_fastest() -> None:
    """It has more ways on than a chain that ends with the text."""
    text = ranked_drafts(lambda _: [RANKED["many ways"]] * LONGEST, LENGTH, 0)
    chooser = Chooser(FREE_ROWS)
    chosen_price(FREE_ROWS, text, chooser)
    assert chooser.choose(1000, 0)[0].depth > 3
    assert not chooser.choose(3, 0)[0].is_chain


def test_a_draft_that_costs_nothing_is_taken_with_nothing_to_spare() -> None:
    """While a round is under way that may lose more than there is."""
    costs = table([1.0, 1.0, *[9.0] * (LONGEST - 1)], 0.1, 0.2)
    chooser, dear = Chooser(costs), Shape.chain(LONGEST)
    chooser.begin()
    while chooser.choose(1000, 0)[0] == dear:
        chooser.observe(dear, [Played(0, 1)], 0, None)
    for _ in range(20):
        chooser.observe(CHAINS[1], [Played(1, 2)], 0, None)
    chooser.observe(dear, [Played(0, 1)] * 9, 0, None)
    chooser.plan_next(1000, 0, dear)
    assert chooser.decide(None)[0] == CHAINS[1]


def test_between_two_lengths_of_about_the_same_speed_it_stays() -> None:
    """A tie with noise must not be a switch in every round."""
    flat = table([1.0, 3.0, 3.001, 3.002, 3.003, 3.004, 3.005, 3.006], 0.1, 0.2)
    chooser = Chooser(flat)
    chooser.begin()
    lengths: list[int] = []
    while len(lengths) < 40:
        shape, rounds = chooser.choose(1000, 0)
        accepted = min(shape.depth, 3)
        played = [Played(accepted, accepted + 1)] * rounds
        chooser.observe(shape, played, 0, flat.seconds(shape, 0))
        lengths += [shape.depth] * rounds
    assert sum(a != b for a, b in itertools.pairwise(lengths)) <= 3


def test_prices_are_interpolated_between_positions() -> None:
    chain = Shape.chain(1)
    costs = RoundCosts(
        positions=(10, 110), rounds={PLAIN: (1, 2), chain: (3, 8)}, rows=5, catch_up=(1.0, 3.0)
    )
    assert costs.longest == chain
    assert [costs.price(PLAIN, 10), costs.price(PLAIN, 60)] == [1, 1]
    assert [costs.price(chain, place) for place in (10, 60, 110)] == [3, 5.5 / 1.5, 4]
    assert [costs.price_of_catching_up(rows, 10) for rows in (1, 3, 5)] == [1, 2, 3]
