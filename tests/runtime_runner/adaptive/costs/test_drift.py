"""When rounds are timed again, and what their times say."""

import math

import pytest

from eagle_aot.runtime_runner.adaptive.costs.drift import (
    FEWEST,
    SAMPLES,
    SETTLED,
    STALE,
    SURE,
    Drift,
)
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.shape import Shape

CHAIN, TREE = Shape.chain(4), Shape(4, 8, 31)


def rounds_until_plain(drift: Drift, seconds: float) -> int:
    """With drafts, of `seconds` each where 1 was expected, until a plain one is due."""
    rounds = 0
    while not drift.wants_plain:
        drift.add(CHAIN, 4, seconds, 1.0)
        rounds += 4
    return rounds


@pytest.fixture
def settled() -> Drift:
    """With as many plain rounds as are relied on, all as fast as expected."""
    drift = Drift()
    for _ in range(FEWEST):
        rounds_until_plain(drift, 1.0)
        drift.add(PLAIN, 1, 1.0, 1.0)
    return drift


def test_plain_rounds_are_due_often_until_enough_are_known() -> None:
    drift = Drift()
    for _ in range(FEWEST):
        assert rounds_until_plain(drift, 1.0) == STALE
        drift.add(PLAIN, 1, 1.0, 1.0)
    assert rounds_until_plain(drift, 1.0) == SETTLED


@pytest.mark.parametrize(("seconds", "rounds"), [(1.02, SETTLED), (1.1, STALE), (0.9, STALE)])
def test_one_is_due_sooner_where_rounds_with_drafts_have_changed(
    settled: Drift, seconds: float, rounds: int
) -> None:
    assert rounds_until_plain(settled, seconds) == rounds


def test_what_all_rounds_share_is_no_drift(settled: Drift) -> None:
    for _ in range(SAMPLES):
        rounds_until_plain(settled, 2.0)
        settled.add(PLAIN, 1, 2.0, 1.0)
    assert settled.of(CHAIN) == pytest.approx(1.0)
    assert rounds_until_plain(settled, 3.0) == STALE
    assert settled.of(CHAIN) == pytest.approx(1.5)


def test_drafting_is_never_thought_cheaper_than_it_was_measured(settled: Drift) -> None:
    rounds_until_plain(settled, 0.5)
    assert settled.of(CHAIN) == 1.0


def in_turn(drift: Drift, chain: float, tree: float, first: float = 0.0) -> None:
    """Runs of both, where as much was expected of the one as of the other; the `first` of each
    takes so much longer."""
    for _ in range(60):
        for shape, seconds in ((CHAIN, chain), (TREE, tree)):
            drift.add(shape, 4, seconds + first, 1.0)
            drift.add(shape, 4, seconds, 1.0)


@pytest.mark.parametrize("dearer", [0.8, 1.0, 1.01, 1.25])
def test_what_a_shape_takes_among_others_is_told_apart_from_them(
    settled: Drift, dearer: float
) -> None:
    in_turn(settled, 1.0, dearer)
    left = math.log(settled.of(TREE) / settled.of(CHAIN)) - math.log(dearer)
    assert abs(left) <= 2 * SURE + 1e-3
    assert settled.of(PLAIN) == 1.0


def test_what_is_about_right_is_left_as_it_is(settled: Drift) -> None:
    in_turn(settled, 1.0, 1.01)
    assert settled.of(TREE) == settled.of(CHAIN)


def test_that_a_run_behind_other_shapes_takes_longer_says_nothing_of_the_shape(
    settled: Drift,
) -> None:
    in_turn(settled, 1.0, 1.0, first=0.3)
    settled.add(CHAIN, 4, 1.0, 1.0)
    assert settled.of(TREE) == settled.of(CHAIN)


def test_a_shape_alone_has_nothing_of_its_own(settled: Drift) -> None:
    for _ in range(4 * SAMPLES):
        settled.add(CHAIN, 4, 1.5, 1.0)
    assert settled.of(TREE) == settled.of(CHAIN) == pytest.approx(1.5)


def test_a_single_slow_run_changes_little(settled: Drift) -> None:
    for seconds in (1.0, 1.0, 50.0):
        settled.add(TREE, 4, seconds, 1.0)
    assert settled.of(TREE) == 1.0
