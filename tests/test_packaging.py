"""What gets installed: one package, all of it."""

import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[1]
COMMON = ("eagle_aot.artifact", "eagle_aot.common")
FOLDERS = ("export", "targets", "runtime_runner", "triton_kernels")


def test_every_folder_with_code_is_listed_for_the_wheel() -> None:
    found = {"eagle_aot"}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join(("eagle_aot", *init.parent.relative_to(ROOT).parts)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    where = project["tool"]["setuptools"]["packages"]["find"]["where"]
    installed = {name for folder in where for name in find_packages(ROOT / folder)}
    assert {name for name in installed if not name.startswith(COMMON)} == found


@pytest.mark.parametrize("folder", ["tiny", "smollm2"])
def test_what_ships_is_small(folder: str) -> None:
    files = [p for p in (ROOT / "targets" / folder).rglob("*") if p.is_file()]
    assert 0 < sum(p.stat().st_size for p in files) <= 12e6
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"{folder}/*/*" in shipped["tool"]["setuptools"]["package-data"]["eagle_aot.targets"]
