"""Chances of drafts, from rounds with known outcomes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.acceptance.estimate import AcceptanceEstimate, runs


def test_it_finds_the_rates_of_a_text() -> None:
    rng, rates = random.Random(0), [0.8, 0.5, 0.9]
    estimate = AcceptanceEstimate(3)
    estimate.begin()
    found = []
    for _ in range(4000):
        accepted = 0
        while accepted < 3 and rng.random() < rates[accepted]:
            accepted += 1
        estimate.add(min(accepted + 1, 3), accepted)
        found.append(estimate.rates())
    means = [sum(column) / len(found) for column in zip(*found, strict=True)]
    assert means == pytest.approx(rates, abs=0.03)


def test_an_unseen_position_does_as_the_one_before_it() -> None:
    estimate = AcceptanceEstimate(4)
    estimate.begin()
    for _ in range(200):
        estimate.add(1, 1)
    assert min(estimate.rates()) > 0.95
    for _ in range(200):
        estimate.add(2, 1)
    first, *others = estimate.rates()
    assert first > 0.95 and max(others) < 0.05


def test_what_is_usual_counts_as_much_at_positions_that_are_seldom_reached() -> None:
    """Of drafts that are right half the time, the fourth is looked at in one round of eight."""
    rng, estimate = random.Random(0), AcceptanceEstimate(4)
    for _ in range(40):
        estimate.begin()
        for _ in range(32):
            accepted = next((i for i in range(4) if rng.random() < 0.5), 4)
            estimate.add(min(accepted + 1, 4), accepted)
    estimate.begin()
    usual = estimate.rates()
    assert usual == pytest.approx([0.5] * 4, abs=0.1)
    for _ in range(3):
        estimate.add(4, 3)
    assert usual[3] / 2 < estimate.rates()[3] < usual[3]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_rates_are_chances(rounds: list[tuple[int, int]]) -> None:
    estimate = AcceptanceEstimate(4)
    estimate.begin()
    for reached, accepted in rounds:
        estimate.add(reached, min(reached, accepted))
    estimate.begin()
    assert all(0 <= rate <= 1 for rate in estimate.rates())


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 7))
def test_runs_are_the_rounds_at_each_token(expected: list[bool], longest: int) -> None:
    found = runs(expected, longest)
    assert len(found) == len(expected)
    for start, (reached, accepted) in enumerate(found):
        assert all(expected[start : start + accepted])
        stopped = reached > accepted
        assert reached == accepted + stopped <= longest
        assert not (stopped and expected[start + accepted])
        assert stopped or start + reached in (len(expected), start + longest)
