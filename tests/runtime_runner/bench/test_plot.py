"""The picture."""

import os
import sys
from pathlib import Path

import pytest
from made_up_results import made_up_context, made_up_results
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread

from eagle_aot.errors import SettingError, UnsupportedError
from eagle_aot.runtime_runner.bench.plot import bar_label, check_plot, draw_context, plot
from eagle_aot.runtime_runner.bench.results import Round


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
    dear = Round(chain_len=1, wall_ms=24.0, host_ms=None, launch_ms=None, floor=None)
    assert bar_label(at, dear) == "24.00 ms, cannot pay"


@pytest.mark.parametrize("count", [1, 3])
def test_the_picture_grows_with_the_contexts(tmp_path: Path, count: int) -> None:
    path = tmp_path / "round.png"
    plot(made_up_results(*(made_up_context(512 * (i + 1)) for i in range(count))), path)
    height, width, _ = imread(path).shape
    assert width == 1500 and height > 150 * count


def test_what_cannot_be_written_is_refused_before_measuring(
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
def test_what_is_protected_is_refused(tmp_path: Path, protect_file: bool) -> None:
    path = tmp_path / "round.png"
    if protect_file:
        path.touch()
    (path if protect_file else tmp_path).chmod(0o500)
    with pytest.raises(SettingError, match="cannot be written: Permission denied"):
        check_plot(path)


def test_checking_changes_nothing(tmp_path: Path) -> None:
    check_plot(tmp_path / "new.png")
    assert not list(tmp_path.iterdir())
    old = tmp_path / "old.png"
    old.write_bytes(b"a picture")
    check_plot(old)
    assert old.read_bytes() == b"a picture"
