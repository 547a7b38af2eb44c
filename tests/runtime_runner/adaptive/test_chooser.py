"""Automatic drafts, in simulated texts whose acceptance rates and costs are known."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.acceptance import RoundSample
from eagle_aot.runtime_runner.adaptive.chooser import (
    INITIAL_BALANCE,
    LOSS_SHARE,
    BatchOptions,
    Chooser,
)
from eagle_aot.runtime_runner.adaptive.costs import CostTable, MeasuredCosts
from eagle_aot.runtime_runner.decode.shape import (
    AUTO_CHAINS,
    AUTO_TREES,
    MAX_AUTO_DEPTH,
    PLAIN,
    Shape,
)
from support.runner.simulated_text import (
    NONE,
    Rates,
    accepted_drafts,
    chain_text,
    chosen_price,
    costs_of,
    first_right,
    fixed_price,
    outcome_of,
    ranked_text,
)

LENGTH = 6000  # tokens
LONGEST_CHAIN = AUTO_CHAINS[-1]

# As measured: the 31B at a context of 8,192 with an INT4 head and with one in bfloat16, and the
# shipped pair on two cores.
COSTS = {
    "31B": costs_of([9.12, 9.5, 9.86, 10.2, 10.6, 10.95, 11.7], (0.3, 1.0)),
    "31B, slow drafts": costs_of([9.12, 11.2, 13.2, 15.2, 17.2, 19.3, 23.3], (1.94, 2.5)),
    "shipped pair": costs_of([1.5, 2.0, 2.46, 2.93, 3.4, 3.86, 4.8], (0.26, 5.2)),
}


def constant(rate: float) -> Rates:
    return lambda position: [rate] * MAX_AUTO_DEPTH


TEXTS: dict[str, Rates] = {
    **{f"all {rate}": constant(rate) for rate in
       (0.0, 0.1, 0.4, 0.6, 0.9, 1.0)},
    "falling": lambda _: [0.8, 0.5, 0.3, 0.2, 0.1, 0.1, 0.1],
    "rising": lambda _: [0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.9],
    "easy, then hard": lambda position: [0.95 if position < LENGTH // 2 else 0.1] * MAX_AUTO_DEPTH,
    "hard, then easy": lambda position: [0.1 if position < LENGTH // 2 else 0.95] * MAX_AUTO_DEPTH,
    "in turn": lambda position: [0.95 if position // 500 % 2 else 0.1] * MAX_AUTO_DEPTH,
}  # fmt: skip
# On a GPU rows are nearly free, on a CPU each is work.
FREE_ROWS = costs_of(
    [9.12, 11.2, 13.2, 15.2, 17.2, 19.3, 23.3], (1.94, 2.5), [17.5, 18.0, 23.0, 26.0]
)
DEAR_ROWS = costs_of([9.0, 14.0, 18.0, 22.0, 26.0, 30.0, 38.0], (3.0, 40.0), [36.0, 50.0, 110.0])
RANKED = {
    "siblings help": [0.45, 0.2, 0.1, 0.1],
    "siblings do not": [0.8, 0.01],
    "nothing helps": [0.05, 0.05],
}


def chooser_of(costs: MeasuredCosts) -> Chooser:
    return Chooser(CostTable(costs))


def with_factors(costs: MeasuredCosts, factors: dict[Shape, float]) -> MeasuredCosts:
    rounds = {
        shape: (near * factors.get(shape, 1.0), far * factors.get(shape, 1.0))
        for shape, (near, far) in costs.rounds.items()
    }
    return replace(costs, rounds=rounds)


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("rates", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("ahead", [True, False])
def test_automatic_length_is_about_as_fast_as_the_best_fixed_length(
    costs: MeasuredCosts, rates: Rates, ahead: bool
) -> None:
    text = chain_text(rates, LENGTH, 0)
    fixed = [fixed_price(costs, text, chain) for chain in AUTO_CHAINS]
    chosen = chosen_price(costs, text, chooser_of(costs), ahead=ahead)
    assert chosen <= min(fixed) / 0.97
    assert chosen <= fixed[0] / 0.98


def test_automatic_length_is_faster_than_any_fixed_length_if_the_text_changes() -> None:
    costs = COSTS["31B, slow drafts"]
    text = chain_text(TEXTS["in turn"], LENGTH, 0)
    fixed = min(fixed_price(costs, text, chain) for chain in AUTO_CHAINS)
    assert chosen_price(costs, text, chooser_of(costs)) < 0.95 * fixed


@pytest.mark.parametrize("costs", [FREE_ROWS, DEAR_ROWS], ids=["free rows", "dear rows"])
@pytest.mark.parametrize("rates", RANKED.values(), ids=RANKED)
def test_automatic_tree_is_about_as_fast_as_the_best_fixed_shape(
    costs: MeasuredCosts, rates: list[float]
) -> None:
    text = ranked_text(lambda _: [rates] * MAX_AUTO_DEPTH, LENGTH, 0)
    fixed = {shape: fixed_price(costs, text, shape) for shape in costs.rounds}
    chosen = chosen_price(costs, text, chooser_of(costs))
    assert chosen <= min(fixed.values()) / 0.92
    assert chosen <= fixed[PLAIN] / 0.98


def test_automatic_tree_is_faster_than_chains_if_siblings_are_right() -> None:
    text = ranked_text(lambda _: [[0.45, 0.25, 0.15, 0.1]] * MAX_AUTO_DEPTH, LENGTH, 0)
    chains = min(fixed_price(FREE_ROWS, text, chain) for chain in AUTO_CHAINS)
    assert chosen_price(FREE_ROWS, text, chooser_of(FREE_ROWS)) < 0.9 * chains


@pytest.mark.parametrize(("accepted", "shape"), [(0, PLAIN), (MAX_AUTO_DEPTH, LONGEST_CHAIN)])
def test_a_new_request_starts_from_what_earlier_requests_showed(
    accepted: int, shape: Shape
) -> None:
    costs = COSTS["shipped pair"]
    chooser = chooser_of(costs)
    for _ in range(21):
        chosen_price(costs, [first_right(accepted)] * 60, chooser)
    chooser.acceptance.begin_request()
    assert chooser.choose_run(AUTO_CHAINS, 0, 60)[0] == shape


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_short_easy_requests_after_many_hard_ones_are_noticed(costs: MeasuredCosts) -> None:
    chooser = chooser_of(costs)
    for seed in range(30):
        chosen_price(costs, chain_text(TEXTS["all 0.1"], 70, seed), chooser)
    texts = [chain_text(TEXTS["all 0.9"], 50, seed) for seed in range(120)]
    chosen = sum(chosen_price(costs, text, chooser) for text in texts)
    fixed = min(sum(fixed_price(costs, text, chain) for text in texts) for chain in AUTO_CHAINS)
    assert chosen <= fixed / 0.85


@pytest.mark.parametrize("factor", [1.0, 1.6])
def test_drafts_that_cost_more_than_measured_are_noticed(factor: float) -> None:
    """In noisy times, on a device on which all rounds became slower."""
    measured = COSTS["shipped pair"]
    costs = with_factors(measured, dict.fromkeys(AUTO_CHAINS[1:], factor))
    rng = random.Random(2)
    text = chain_text(TEXTS["all 0.6"], LENGTH, 0)
    fixed = min(fixed_price(costs, text, chain) for chain in AUTO_CHAINS)
    noise = lambda: 2.0 * rng.lognormvariate(0.0, 0.2)  # noqa: E731
    assert chosen_price(costs, text, chooser_of(measured), noise) <= fixed / 0.95


@pytest.mark.parametrize("seed", range(4))
def test_wrong_measurements_of_single_shapes_are_noticed(seed: int) -> None:
    costs, rng = COSTS["31B, slow drafts"], random.Random(seed)
    measured = with_factors(costs, {k: rng.lognormvariate(0.0, 0.15) for k in AUTO_CHAINS[1:]})
    rates = [[rng.uniform(0.3, 0.95)] * MAX_AUTO_DEPTH for _ in range(LENGTH // 100)]
    text = chain_text(lambda position: rates[position // 100], LENGTH, seed)
    fixed = min(fixed_price(costs, text, chain) for chain in AUTO_CHAINS)
    assert chosen_price(costs, text, chooser_of(measured)) <= fixed / 0.9


PRICES = st.tuples(st.floats(1.0, 3.0), st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6))
RANKS = st.lists(
    st.sampled_from([*range(8), NONE]), min_size=MAX_AUTO_DEPTH, max_size=MAX_AUTO_DEPTH
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    PRICES,
    st.lists(st.floats(1.0, 9.0), max_size=len(AUTO_TREES)),
    st.floats(0.0, 5.0),
    st.floats(0.0, 0.2),
    st.lists(st.lists(RANKS, min_size=1, max_size=100), min_size=1, max_size=4),
    st.booleans(),
)
def test_no_more_is_lost_against_plain_decoding_than_the_account_allows(
    prices: tuple[float, list[float]],
    trees: list[float],
    one: float,
    row: float,
    texts: list[list[list[int]]],
    ahead: bool,
) -> None:
    first, steps = prices
    chains = [1.0, *(first + sum(steps[:k]) for k in range(6))]
    costs = costs_of(chains, (one, one + 127 * row), trees)
    chooser = chooser_of(costs)
    spent = sum(chosen_price(costs, text, chooser, ahead=ahead) for text in texts)
    tokens = sum(map(len, texts))
    # A last round may accept more than the request has room for.
    cut_off = MAX_AUTO_DEPTH * len(texts)
    assert (1 - LOSS_SHARE) * spent <= tokens + INITIAL_BALANCE + cut_off + 1e-6


@pytest.mark.parametrize("costs", [*COSTS.values(), FREE_ROWS])
def test_nothing_is_drafted_for_the_last_token(costs: MeasuredCosts) -> None:
    assert chooser_of(costs).choose_run(list(costs.rounds), 0, 1)[0] == PLAIN


def test_drafts_beyond_the_end_of_a_request_do_not_count() -> None:
    """A short chain does if few tokens remain."""
    chooser = chooser_of(costs_of([9.0, 9.1, *[12.0] * 5], (0.1, 0.2)))
    sample = RoundSample(MAX_AUTO_DEPTH, MAX_AUTO_DEPTH + 1)
    chooser.add(LONGEST_CHAIN, [sample] * 100, [])
    assert chooser.choose_run(AUTO_CHAINS, 0, 1000)[0] == LONGEST_CHAIN
    assert chooser.choose_run(AUTO_CHAINS, 0, 2)[0] == AUTO_CHAINS[1]


def test_shapes_of_about_the_same_speed_do_not_alternate() -> None:
    costs = costs_of([1.0, 3.0, 3.001, 3.002, 3.003, 3.004, 3.005], (0.1, 0.2))
    chooser = chooser_of(costs)
    shapes: list[Shape] = []
    while len(shapes) < 40:
        shape, rounds = chooser.choose_run(AUTO_CHAINS, 0, 1000)
        accepted = min(shape.depth, 3)
        samples = [RoundSample(accepted, accepted + 1)] * rounds
        chooser.add(shape, samples, [costs.seconds(shape, 0)] * rounds)
        shapes += [shape] * rounds
    assert sum(a != b for a, b in itertools.pairwise(shapes)) <= 3


def play_batch(
    chooser: Chooser, rates: Sequence[float], row: float, requests: int, seed: int
) -> list[Shape]:
    """Return what was chosen for a batch, in which each row of a request takes `row` of the time
    of a plain round."""
    shapes = (*AUTO_CHAINS, *AUTO_TREES) if len(rates) > 1 else AUTO_CHAINS
    rng, chosen = random.Random(seed), []
    for _ in range(600):
        options = BatchOptions(
            shapes=shapes, batch_size=requests, remaining_tokens=MAX_AUTO_DEPTH + 1, share=1.0
        )
        shape = chooser.choose_for_batch(options)
        texts = ranked_text(lambda _: [rates] * MAX_AUTO_DEPTH, requests, rng.randrange(1 << 30))
        outcomes = [outcome_of(shape, ranks) for ranks in texts]
        samples = [RoundSample.of(outcome, outcome.accepted + 1) for outcome in outcomes]
        seconds = 0.01 * (1 + row * shape.nodes) * rng.uniform(0.98, 1.02)
        chooser.add(shape, samples, [seconds], batch_size=requests)
        chosen.append(shape)
    return chosen


def batch_speed(rates: Sequence[float], row: float, shape: Shape) -> float:
    """Return tokens of a request over time."""
    text = ranked_text(lambda _: [rates] * MAX_AUTO_DEPTH, 2000, 0)
    tokens = sum(accepted_drafts(shape, ranks) + 1 for ranks in text)
    return tokens / len(text) / (1 + row * shape.nodes)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    rates=st.one_of(
        st.lists(st.floats(0.0, 0.95), min_size=1, max_size=1), st.sampled_from([*RANKED.values()])
    ),
    row=st.floats(0.02, 1.0),
    requests=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 99),
)
def test_a_batch_has_about_the_best_shape(
    rates: list[float], row: float, requests: int, seed: int
) -> None:
    chosen = play_batch(chooser_of(FREE_ROWS), rates, row, requests, seed)[200:]
    shapes = (*AUTO_CHAINS, *AUTO_TREES) if len(rates) > 1 else AUTO_CHAINS
    speeds = {shape: batch_speed(rates, row, shape) for shape in shapes}
    assert sum(speeds[shape] for shape in chosen) / len(chosen) > 0.9 * max(speeds.values())


def test_a_batch_tries_drafts_again_after_they_did_not_pay() -> None:
    chooser = chooser_of(FREE_ROWS)
    assert play_batch(chooser, [0.01], 0.05, 4, 1)[-1] == PLAIN
    assert LONGEST_CHAIN in play_batch(chooser, [0.95], 0.05, 4, 2)[-50:]


def test_a_batch_has_at_least_the_drafts_that_a_request_asks_for() -> None:
    chooser = chooser_of(FREE_ROWS)
    shapes = Shape.chain(3), Shape.chain(4)
    options = BatchOptions(shapes=shapes, batch_size=2, remaining_tokens=8, share=0.5)
    for _ in range(50):
        shape = chooser.choose_for_batch(options)
        assert shape in shapes
        chooser.add(shape, [RoundSample(0, 1)], [0.01], batch_size=2)
