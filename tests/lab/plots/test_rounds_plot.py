"""The picture."""

from pathlib import Path

import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread

from eagle_aot.lab.bench.results import RoundTimes
from eagle_aot.lab.plots.rounds import bar_label, draw_context, plot_rounds
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.made_up_results import made_up_context, made_up_results


def test_bars_are_as_long_as_rounds() -> None:
    axes = Figure().subplots()
    at = made_up_context()
    draw_context(axes, at)
    parts = [c for c in axes.containers if isinstance(c, BarContainer)]
    assert len(parts) == 5
    for place, round_ in enumerate(at.rounds):
        widths = [part.patches[place].get_width() for part in parts]
        assert sum(widths) == pytest.approx(round_.wall_ms)
        ends = [part.patches[place].get_x() for part in parts[1:]]
        assert ends == pytest.approx([sum(widths[: i + 1]) for i in range(4)])


def test_bars_say_what_drafts_must_be_worth() -> None:
    at = made_up_context()
    plain, round_ = at.rounds
    assert bar_label(at, plain) == "12.00 ms"
    assert bar_label(at, round_) == "18.00 ms, pays above tau 1.50"
    dear = RoundTimes(shape=Shape.chain(1), wall_ms=24.0, host_ms=None, launch_ms=None, floor=None)
    assert bar_label(at, dear) == "24.00 ms, cannot pay"


@pytest.mark.parametrize("count", [1, 3])
def test_the_picture_grows_with_the_contexts(tmp_path: Path, count: int) -> None:
    path = tmp_path / "round.png"
    plot_rounds(made_up_results(*(made_up_context(512 * (i + 1)) for i in range(count))), path)
    height, width, _ = imread(path).shape
    assert width == 1500 and height > 150 * count
