"""Calibration, of drafters that are too sure of themselves or not sure enough."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.acceptance.reliability import Reliability


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_it_finds_how_often_tokens_come(power: float) -> None:
    """That the drafter gives `true ** power` instead of `true`."""
    rng, reliability = random.Random(0), Reliability()
    for _ in range(20_000):
        true = rng.random()
        reliability.add(true**power, rng.random() < true)
    for true in (0.05, 0.3, 0.6, 0.9):
        (found,) = reliability.calibrated([true**power])
        assert found == pytest.approx(true, abs=0.1), true


def test_it_begins_with_the_drafters_own_word() -> None:
    assert Reliability().calibrated([0.9, 0.05, 0.0]) == pytest.approx([0.9, 0.05, 0.0])


def test_it_forgets() -> None:
    reliability = Reliability()
    for came in (False, True):
        for _ in range(5000):
            reliability.add(0.5, came)
    (found,) = reliability.calibrated([0.5])
    assert found > 0.9


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60),
    st.lists(st.floats(0, 1), max_size=8),
)
def test_siblings_have_one_place_between_them(
    seen: list[tuple[float, bool]], chances: list[float]
) -> None:
    reliability = Reliability()
    for chance, came in seen:
        reliability.add(chance, came)
    found = reliability.calibrated(chances)
    assert all(0 <= chance <= 1 for chance in found) and sum(found) <= 1 + 1e-9
