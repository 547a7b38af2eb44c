"""The picture of what drafts were worth."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from eagle_aot.lab.plots.acceptance import (
    draw_positions,
    draw_ranks,
    draw_tokens_per_round,
    plot_acceptance,
)
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats


@pytest.fixture
def stats() -> Stats:
    stats = Stats(chain_len=2)
    for accepted in (2, 1, 0, 0):
        stats.add_round(drafted=2, accepted=accepted, emitted=accepted + 1)
    return stats


def test_lines_are_the_shares(stats: Stats) -> None:
    axes = Figure().subplots()
    draw_positions(axes, stats)
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert drawn == {"of rounds that reached it": [0.5, 0.5], "of all rounds": [0.5, 0.25]}
    assert all(list(line.get_xdata()) == [1, 2] for line in axes.get_lines())


def test_bars_are_tokens_per_round(stats: Stats) -> None:
    axes = Figure().subplots()
    draw_tokens_per_round(axes, stats)
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    assert bars == pytest.approx({1: 0.5, 2: 0.25, 3: 0.25})
    assert axes.get_title(loc="left") == "Rounds; tau 1.75 tokens"


@pytest.fixture
def tree() -> Stats:
    """Of two siblings, the second was right, and nothing after it."""
    stats = Stats(chain_len=2, tree=Shape(2, 2, 6))
    stats.add_round(6, 1, 2, ranks=(0, 1, 0), offered_ranks=(0b11, 0b11, 0))
    return stats


def test_a_trees_bars_are_by_rank_and_end_at_the_most_tokens(tree: Stats) -> None:
    axes = Figure().subplots()
    draw_ranks(axes, tree)
    assert [bar.get_height() for bar in axes.patches] == [0.0, 0.5]
    axes = Figure().subplots()
    draw_tokens_per_round(axes, tree)
    assert [bar.get_height() for bar in axes.patches] == [0.0, 1.0]
    axes = Figure().subplots()
    draw_positions(axes, tree)
    assert axes.get_xlabel() == "depth of the draft"


def test_a_tree_has_a_part_more(tree: Stats, tmp_path: Path) -> None:
    plot_acceptance(tree, "tree 2,2,6", tmp_path / "acceptance.png")
    assert imread(tmp_path / "acceptance.png").shape[:2] == (540, 2025)


def test_it_is_written(stats: Stats, tmp_path: Path) -> None:
    plot_acceptance(stats, "a $name, K = 2", tmp_path / "acceptance.png")
    assert imread(tmp_path / "acceptance.png").shape[:2] == (540, 1350)
