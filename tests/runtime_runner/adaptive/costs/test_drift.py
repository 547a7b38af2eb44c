"""When rounds are timed again, and what their times say."""

import pytest

from eagle_aot.runtime_runner.adaptive.costs.drift import FEWEST, SAMPLES, SETTLED, STALE, Drift


def rounds_until_plain(drift: Drift, seconds: float) -> int:
    """With drafts, of `seconds` each where 1 was expected, until a plain one is due."""
    rounds = 0
    while not drift.wants_plain:
        drift.add(True, 4, seconds, 1.0)
        rounds += 4
    return rounds


@pytest.fixture
def settled() -> Drift:
    """With as many plain rounds as are relied on, all as fast as expected."""
    drift = Drift()
    for _ in range(FEWEST):
        rounds_until_plain(drift, 1.0)
        drift.add(False, 1, 1.0, 1.0)
    return drift


def test_plain_rounds_are_due_often_until_enough_are_known() -> None:
    drift = Drift()
    for _ in range(FEWEST):
        assert rounds_until_plain(drift, 1.0) == STALE
        drift.add(False, 1, 1.0, 1.0)
    assert rounds_until_plain(drift, 1.0) == SETTLED


@pytest.mark.parametrize(("seconds", "rounds"), [(1.02, SETTLED), (1.1, STALE), (0.9, STALE)])
def test_one_is_due_sooner_where_rounds_with_drafts_have_changed(
    settled: Drift, seconds: float, rounds: int
) -> None:
    assert rounds_until_plain(settled, seconds) == rounds


def test_what_all_rounds_share_is_no_drift(settled: Drift) -> None:
    for _ in range(SAMPLES):
        rounds_until_plain(settled, 2.0)
        settled.add(False, 1, 2.0, 1.0)
    assert settled.factor == pytest.approx(1.0)
    assert rounds_until_plain(settled, 3.0) == STALE
    assert settled.factor == pytest.approx(1.5)


def test_drafting_is_never_thought_cheaper_than_it_was_measured(settled: Drift) -> None:
    rounds_until_plain(settled, 0.5)
    assert settled.factor == 1.0
