"""What the reliability table is made of."""

import pytest
import torch

from bench_calibration import Judged, bins, errors, judge, of_each, of_paths, siblings
from eagle_aot.runtime_runner.adaptive.acceptance.reliability import Reliability
from eagle_aot.runtime_runner.rounds.round import Outcome
from eagle_aot.runtime_runner.rounds.step import Draft


def test_siblings_behind_what_was_accepted_are_looked_at() -> None:
    """7 and 8 behind the bonus, 5 and 6 behind 8, nothing behind 6."""
    chances = torch.tensor([[0.5, 0.25, 0.125, 0.0625]])
    draft = Draft(
        tokens=torch.tensor([[7, 8, 5, 6]]),
        parents=torch.tensor([[0, 0, 2, 2]]),
        ranks=torch.tensor([[0, 1, 0, 1]]),
        depth=2,
        scores=chances.log(),
    )
    first, second, behind = siblings(draft, Outcome(2, [8, 6, 9]))
    assert (pytest.approx([0.5, 0.25]), [False, True]) == first
    assert (pytest.approx([0.5, 0.25]), [False, True]) == second
    assert behind == ([], [])
    (missed,) = siblings(draft, Outcome(0, [1]))
    assert missed[1] == [False, False]


def test_each_is_judged_by_what_was_known_before_it() -> None:
    reliability = Reliability()
    (first,) = judge(reliability, [0.4], [True])
    assert first == (0.4, pytest.approx(0.4), True)
    (second,) = judge(reliability, [0.4], [True])
    assert second.calibrated > 0.4


def test_bins_and_their_distance_from_what_came() -> None:
    judged = [Judged(0.6, 0.75, True), Judged(0.6, 0.75, True), Judged(0.6, 0.75, False)]
    (line,) = bins([*judged, Judged(0.6, 0.75, True)])
    assert (line.low, line.high, line.drafts, line.came) == (0.5, 0.65, 4, 0.75)
    assert errors([line]) == pytest.approx({"raw": 0.15, "calibrated": 0.0})


def test_paths_are_told_apart_by_whether_they_left_the_chain() -> None:
    """The likeliest three times, and no more; a second choice, the likeliest, then no draft."""
    wide, narrow = [0.6, 0.3], [0.9]
    on = [*3 * [(wide, [True, False])], ([], [])]
    off = [(wide, [False, True]), (narrow, [True]), ([], [])]
    found = of_paths([on, off], 3)
    assert [(x.on_chain, x.depth, x.reached, *x.shares()) for x in found] == [
        (True, 1, 2, 0.5, 1.0),
        (True, 2, 1, 1.0, 0.0),
        (True, 3, 1, 1.0, 0.0),
        (False, 2, 1, 1.0, 0.0),
        (False, 3, 1, 0.0, 0.0),
    ]


def test_so_many_of_each_kind() -> None:
    prompts = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4")]
    assert of_each(prompts, 2) == ["1", "2", "3"]
    assert of_each(prompts, None) == ["1", "2", "3", "4"]
