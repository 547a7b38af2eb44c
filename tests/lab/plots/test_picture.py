"""Pictures that could not be written."""

import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.lab.plots.picture import check_plot, save_picture


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


def test_a_disk_that_is_full_costs_no_picture_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "round.png"
    path.write_bytes(b"the old one")

    class Figure:
        def savefig(self, place: Path, format: str) -> None:
            place.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(SettingError, match=r"round\.png: cannot be written: No space left"):
        save_picture(cast(Any, Figure()), path)
    assert path.read_bytes() == b"the old one" and list(tmp_path.iterdir()) == [path]
