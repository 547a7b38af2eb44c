"""Expected tokens of rounds whose texts share rows."""

import pytest

from eagle_aot.runtime_runner.adaptive.acceptance import AcceptanceEstimator, RoundSample
from eagle_aot.runtime_runner.adaptive.chooser import BatchOptions, Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable
from eagle_aot.runtime_runner.adaptive.survival import SurvivalEstimator
from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import PLAIN, Shape

SURE, UNSURE = (0.9, 0.8, 0.7, 0.6, 0.5), (0.2, 0.1, 0.0, 0.0, 0.0)
ONE, TWO = Shape.chain(1), Shape.chain(2)


def sample(accepted: int, drafted: int, survival: tuple[float, ...]) -> RoundSample:
    outcome = Outcome(accepted, [5] * 8, drafted, survival=survival)
    return RoundSample.of(outcome, accepted + 1)


def test_rows_are_expected_to_go_to_the_likeliest_drafts() -> None:
    """A chain of 1 for each of two texts is two rows: both go to the text that is sure."""
    estimator = SurvivalEstimator()
    assert not estimator.tokens([ONE, TWO], 8)
    estimator.add([sample(0, 0, SURE), sample(0, 0, UNSURE)])
    tokens = estimator.tokens([PLAIN, ONE, TWO, Shape(2, 2, 4)], 8)
    assert tokens == pytest.approx({ONE: 1 + 1.7 / 2, TWO: 1 + 3.0 / 2})
    assert estimator.tokens([TWO], 3) == pytest.approx({TWO: 1 + (0.9 + 0.8 + 0.2 + 0.1) / 2})
    estimator.add([RoundSample(1, 2)])
    assert not estimator.tokens([ONE], 8), "no text shares rows any more"


def test_probabilities_that_are_too_high_are_scaled() -> None:
    estimator = SurvivalEstimator()
    for _ in range(400):
        estimator.add([sample(1, 2, (1.0, 1.0, 1.0))])
        cut = Outcome(2, [5] * 8, 2, survival=(1.0, 1.0, 1.0))
        estimator.add([RoundSample.of(cut, 1)])  # by the text's end, which says nothing
    estimator.add([sample(1, 2, (1.0, 1.0, 1.0))])
    assert estimator.tokens([TWO], 8)[TWO] == pytest.approx(2.0, abs=0.05)


def test_acceptance_counts_the_drafts_that_were_verified() -> None:
    """A text that got one row more than its bonus token's had one draft, whatever the shape."""
    estimator = AcceptanceEstimator()
    for _ in range(200):
        estimator.add(TWO, sample(1, 1, SURE))
    first, both = (estimator.tokens([shape], 8)[shape] - 1 for shape in (ONE, TWO))
    assert first > 0.98 and both > 1.9, "the second draft was never rejected"


def test_a_batch_that_is_sure_verifies_more_rows() -> None:
    for survival, chosen in ((SURE, TWO), (UNSURE, PLAIN)):
        chooser = Chooser(CostTable())
        for shape, seconds in ((PLAIN, 1.0), (ONE, 1.3), (TWO, 1.5)):
            for _ in range(4):
                samples = [sample(0, shape.depth, survival)] * 2 if shape.nodes else []
                chooser.add(shape, samples, [seconds] * 4, batch_size=2)
        chooser.survival = SurvivalEstimator()
        chooser.survival.add([sample(0, 0, survival)] * 2)
        options = BatchOptions(
            shapes=(PLAIN, ONE, TWO), batch_size=2, remaining_tokens=8, share=1.0
        )
        assert chooser.choose_for_batch(options) == chosen
