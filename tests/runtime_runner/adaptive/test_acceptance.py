"""Expected tokens of rounds, in simulated texts whose acceptance rates are known."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.acceptance import AcceptanceEstimator, RoundSample
from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import (
    AUTO_CHAINS,
    AUTO_TREES,
    MAX_AUTO_DEPTH,
    PLAIN,
    Shape,
)
from support.runner.simulated_text import (
    NONE,
    Ranks,
    accepted_drafts,
    chain_text,
    outcome_of,
    ranked_text,
)

MANY = 1000  # remaining tokens
CHAIN, TREE = Shape.chain(4), AUTO_TREES[1]
SIBLINGS_HELP = [0.6, 0.15, 0.1, 0.05]
"""Chances of each rank, at any depth."""


def learn(estimator: AcceptanceEstimator, shape: Shape, text: Sequence[Ranks]) -> None:
    """Play a round at each position of a text."""
    for ranks in text:
        outcome = outcome_of(shape, ranks)
        estimator.add(shape, RoundSample.of(outcome, outcome.accepted + 1))


def tokens(estimator: AcceptanceEstimator, shape: Shape, remaining: int = MANY) -> float:
    return estimator.tokens([shape], remaining)[shape]


def mean_tokens(shape: Shape, text: Sequence[Ranks]) -> float:
    return sum(accepted_drafts(shape, ranks) + 1 for ranks in text) / len(text)


def mean_estimate(played: Shape, shape: Shape, text: Sequence[Ranks]) -> float:
    """Return the mean estimate for a shape after a hundred rounds of another."""
    estimator, estimates = AcceptanceEstimator(), []
    learn(estimator, played, text[:100])
    for ranks in text[100:]:
        learn(estimator, played, [ranks])
        estimates.append(tokens(estimator, shape))
    return sum(estimates) / len(estimates)


@pytest.mark.parametrize("rates", [[0.6] * MAX_AUTO_DEPTH, [0.8, 0.5, 0.9, 0.7, 0.6, 0.5, 0.4]])
@pytest.mark.parametrize("chain", AUTO_CHAINS[1:], ids=str)
def test_tokens_of_chains_are_estimated_from_a_longer_chain(
    rates: list[float], chain: Shape
) -> None:
    text = chain_text(lambda _: rates, 4000, 0)
    assert mean_estimate(AUTO_CHAINS[-1], chain, text) == pytest.approx(
        mean_tokens(chain, text), rel=0.03
    )


def test_plain_rounds_emit_one_token() -> None:
    assert tokens(AcceptanceEstimator(), PLAIN) == 1


@pytest.mark.parametrize("tree", AUTO_TREES, ids=str)
def test_tokens_of_a_tree_are_estimated_from_its_own_rounds(tree: Shape) -> None:
    text = ranked_text(lambda _: [SIBLINGS_HELP] * MAX_AUTO_DEPTH, 3000, 3)
    assert mean_estimate(tree, tree, text) == pytest.approx(mean_tokens(tree, text), rel=0.05)


def test_tokens_of_a_chain_are_estimated_from_rounds_of_a_tree() -> None:
    text = ranked_text(lambda _: [SIBLINGS_HELP] * MAX_AUTO_DEPTH, 3000, 3)
    assert mean_estimate(TREE, CHAIN, text) == pytest.approx(mean_tokens(CHAIN, text), rel=0.1)


def test_a_tree_that_did_badly_is_tried_again_after_other_trees_ran() -> None:
    estimator, other = AcceptanceEstimator(), AUTO_TREES[0]
    text = ranked_text(lambda _: [SIBLINGS_HELP] * MAX_AUTO_DEPTH, 1000, 3)
    learn(estimator, other, text)
    guess = tokens(estimator, TREE)
    learn(estimator, TREE, [[NONE] * MAX_AUTO_DEPTH] * 50)
    learn(estimator, other, text[:50])
    assert tokens(estimator, TREE) < 0.8 * guess
    learn(estimator, other, text)
    assert tokens(estimator, TREE) > 0.9 * guess


def test_a_tree_may_lack_the_drafts_of_the_chain() -> None:
    """All likeliest drafts would be accepted, but two in a row are drafted."""
    estimator = AcceptanceEstimator()
    for _ in range(400):
        estimator.add(CHAIN, RoundSample(4, 5))
        estimator.add(TREE, RoundSample(2, 3, ranks=(0, 0, 0)))
    assert tokens(estimator, TREE) < 3.5 < tokens(estimator, CHAIN)


def test_no_more_tokens_are_expected_than_remain() -> None:
    estimator = AcceptanceEstimator()
    for remaining in range(5):
        for shape in (*AUTO_CHAINS, *AUTO_TREES):
            assert tokens(estimator, shape, remaining) <= max(remaining, 1)


def test_a_depth_that_was_not_reached_lately_takes_the_rate_before_it() -> None:
    estimator = AcceptanceEstimator()
    learn(estimator, CHAIN, [[0, 0, NONE, NONE]] * 200)
    assert tokens(estimator, CHAIN) == pytest.approx(3, abs=0.1)
    learn(estimator, AUTO_CHAINS[1], [[0]] * 600)
    assert tokens(estimator, CHAIN) > 4.5


def test_a_request_starts_from_the_usual_rates_and_soon_has_its_own() -> None:
    estimator = AcceptanceEstimator()
    for seed in range(20):
        estimator.begin_request()
        learn(estimator, CHAIN, chain_text(lambda _: [0.5] * MAX_AUTO_DEPTH, 40, seed))
    estimator.begin_request()
    usual = sum(0.5**k for k in range(5))
    assert tokens(estimator, CHAIN) == pytest.approx(usual, rel=0.15)
    learn(estimator, CHAIN, [[0] * MAX_AUTO_DEPTH] * 12)
    assert tokens(estimator, CHAIN) > 1.5 * usual


def test_predictions_of_plain_tokens_count_as_chains() -> None:
    rng, estimator, rounds = random.Random(0), AcceptanceEstimator(), AcceptanceEstimator()
    estimator.add_predictions([rng.random() < 0.7 for _ in range(400)])
    learn(rounds, AUTO_CHAINS[-1], chain_text(lambda _: [0.7] * MAX_AUTO_DEPTH, 400, 0))
    assert tokens(estimator, CHAIN) == pytest.approx(tokens(rounds, CHAIN), rel=0.2)


@pytest.mark.parametrize(
    ("ranks", "accepted", "likeliest"),
    [((), 3, 3), ((0, 0, 0, 0), 3, 3), ((0, 0, 1, 0), 3, 1), ((0, 2), 1, 0), ((0,), 0, 0)],
)
def test_the_chain_within_a_tree_ends_at_the_first_sibling(
    ranks: tuple[int, ...], accepted: int, likeliest: int
) -> None:
    assert RoundSample(accepted, accepted + 1, ranks).likeliest == likeliest


def test_drafts_after_the_end_of_a_request_do_not_count() -> None:
    sample = RoundSample.of(Outcome(3, [5, 6, 7, 8], ranks=(0, 0, 0, 0)), 2)
    assert (sample.accepted, sample.emitted, sample.likeliest) == (2, 2, 2)


SAMPLES = st.tuples(
    st.sampled_from([*AUTO_CHAINS, *AUTO_TREES]),
    st.integers(0, MAX_AUTO_DEPTH + 1),
    st.integers(0, MAX_AUTO_DEPTH + 1),
)


@given(st.lists(SAMPLES, max_size=60), st.lists(st.booleans(), max_size=20), st.integers(0, 20))
def test_estimates_are_possible_numbers_of_tokens(
    rounds: list[tuple[Shape, int, int]], correct: list[bool], remaining: int
) -> None:
    estimator = AcceptanceEstimator()
    for shape, accepted, emitted in rounds:
        accepted = min(accepted, shape.depth, emitted)
        estimator.add(shape, RoundSample(accepted, emitted, (0,) * (accepted + 1)))
    estimator.add_predictions(correct)
    estimator.begin_request()
    for shape, expected in estimator.tokens([*AUTO_CHAINS, *AUTO_TREES], remaining).items():
        assert 1 <= expected <= shape.depth + 1
