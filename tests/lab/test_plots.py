"""Plots of the acceptance of drafts, and files that cannot be written."""

import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.lab.plots import (
    check_plot,
    draw_positions,
    draw_ranks,
    draw_tokens_per_round,
    plot_acceptance,
    save_picture,
)
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats


def bars_of(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


@pytest.fixture
def stats() -> Stats:
    stats = Stats(chain_len=2)
    for accepted in (2, 1, 0, 0):
        stats.add_round(drafted=2, accepted=accepted, emitted=accepted + 1)
    return stats


def test_lines_show_acceptance_by_position(stats: Stats) -> None:
    axes = Figure().subplots()
    draw_positions(axes, stats)
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()}
    assert drawn == {"of rounds that reached it": [0.5, 0.5], "of all rounds": [0.5, 0.25]}
    assert all(np.asarray(line.get_xdata()).tolist() == [1, 2] for line in axes.get_lines())


def test_bars_show_tokens_per_round(stats: Stats) -> None:
    axes = Figure().subplots()
    draw_tokens_per_round(axes, stats)
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in bars_of(axes)}
    assert bars == pytest.approx({1: 0.5, 2: 0.25, 3: 0.25})
    assert axes.get_title(loc="left") == "Rounds; tau 1.75 tokens"


@pytest.fixture
def tree() -> Stats:
    """A round in which the second of two siblings was accepted, and nothing after it."""
    stats = Stats(chain_len=2, tree=Shape(2, 2, 6))
    stats.add_round(6, 1, 2, ranks=(0, 1, 0), offered_ranks=(0b11, 0b11, 0))
    return stats


def test_bars_of_a_tree_show_ranks_and_end_at_the_most_tokens(tree: Stats) -> None:
    axes = Figure().subplots()
    draw_ranks(axes, tree)
    assert [bar.get_height() for bar in bars_of(axes)] == [0.0, 0.5]
    axes = Figure().subplots()
    draw_tokens_per_round(axes, tree)
    assert [bar.get_height() for bar in bars_of(axes)] == [0.0, 1.0]
    axes = Figure().subplots()
    draw_positions(axes, tree)
    assert axes.get_xlabel() == "depth of the draft"


def test_the_plot_of_a_tree_has_a_third_part(tree: Stats, tmp_path: Path) -> None:
    plot_acceptance(tree, "tree 2,2,6", tmp_path / "acceptance.png")
    assert imread(tmp_path / "acceptance.png").shape[:2] == (540, 2025)


def test_the_plot_of_a_chain_is_written(stats: Stats, tmp_path: Path) -> None:
    plot_acceptance(stats, "a $name, K = 2", tmp_path / "acceptance.png")
    assert imread(tmp_path / "acceptance.png").shape[:2] == (540, 1350)


def test_a_path_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingError, match=r"round\.jpg: must end in \.png"):
        check_plot(tmp_path / "round.jpg")
    with pytest.raises(SettingError, match="there is no such directory"):
        check_plot(tmp_path / "none" / "round.png")
    long_name = tmp_path / f"{'x' * 300}.png"
    with pytest.raises(SettingError, match="cannot be written: File name too long"):
        check_plot(long_name)
    (tmp_path / "directory.png").mkdir()
    with pytest.raises(SettingError, match=r"directory\.png: cannot be written: Is a directory"):
        check_plot(tmp_path / "directory.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="--plot needs matplotlib: pip install"):
        check_plot(tmp_path / "round.png")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("protect_file", [True, False])
def test_a_protected_path_is_refused(tmp_path: Path, protect_file: bool) -> None:
    path = tmp_path / "round.png"
    if protect_file:
        path.touch()
    (path if protect_file else tmp_path).chmod(0o500)
    with pytest.raises(SettingError, match="cannot be written: Permission denied"):
        check_plot(path)


def test_checking_a_path_changes_no_file(tmp_path: Path) -> None:
    check_plot(tmp_path / "new.png")
    assert not list(tmp_path.iterdir())
    old = tmp_path / "old.png"
    old.write_bytes(b"an image")
    check_plot(old)
    assert old.read_bytes() == b"an image"


def test_a_full_disk_keeps_the_earlier_plot(tmp_path: Path) -> None:
    path = tmp_path / "round.png"
    path.write_bytes(b"the old one")

    class FullDisk:
        def savefig(self, target: Path, format: str) -> None:
            target.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(SettingError, match=r"round\.png: cannot be written: No space left"):
        save_picture(cast(Any, FullDisk()), path)
    assert path.read_bytes() == b"the old one" and list(tmp_path.iterdir()) == [path]
