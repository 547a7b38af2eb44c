"""What gets installed: one package, all of it."""

import runpy
import tomllib
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("export", "lab", "targets", "runtime_runner", "triton_kernels")


def test_every_folder_with_code_is_in_the_wheel() -> None:
    with_code = {"eagle_aot"}
    for folder in (*FOLDERS, "src/eagle_aot/artifact", "src/eagle_aot/common"):
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            with_code.add(".".join(("eagle_aot", *(parts[2:] if parts[0] == "src" else parts))))
    assert set(installed_packages()) == with_code


def installed_packages() -> list[str]:
    """What setup.py hands to setuptools."""
    given: dict[str, list[str]] = {}
    with patch("setuptools.setup", lambda **arguments: given.update(arguments)), chdir(ROOT):
        runpy.run_path("setup.py")
    return given["packages"]


@pytest.mark.parametrize("folder", ["tiny", "smollm2"])
def test_shipped_checkpoints_are_small(folder: str) -> None:
    files = [p for p in (ROOT / "targets" / folder).rglob("*") if p.is_file()]
    assert 0 < sum(p.stat().st_size for p in files) <= 12e6
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"{folder}/*/*" in shipped["tool"]["setuptools"]["package-data"]["eagle_aot.targets"]
