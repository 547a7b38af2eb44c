"""Where a picture goes, seen to before the work that it shows."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.common.errors import SettingError, UnsupportedError, reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_plot(path: Path) -> None:
    """Raise before anything is measured when the picture could not be written."""
    if path.suffix != ".png":
        raise SettingError(f"--plot {path}: must end in .png")
    if not os.path.isdir(path.parent):
        raise SettingError(f"--plot {path}: there is no such directory")
    if find_spec("matplotlib") is None:
        raise UnsupportedError('--plot needs matplotlib: pip install "eagle-aot[bench]"')
    try:
        open_for_writing(path)
    except OSError as error:
        raise SettingError(f"--plot {path}: cannot be written: {reason(error)}") from error


def open_for_writing(path: Path) -> None:
    """See whether that works, and leave everything as it was. Raises OSError."""
    was_there = os.path.lexists(path)
    path.open("ab").close()
    if not was_there:
        path.unlink()


def save_picture(figure: "Figure", path: Path) -> None:
    """Write a PNG, whole or not at all. Raises SettingError when the disk refuses."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format="png")
        partial.replace(path)
    except OSError as error:
        raise SettingError(f"--plot {path}: cannot be written: {reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
