"""A module is imported without its package, and the package afterwards as if nothing had been."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from eagle_aot.runtime_runner.executors.light_import import without


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of which one module is wanted; its own code says that it ran."""
    heavy = tmp_path / "light_import_toy" / "heavy"
    heavy.mkdir(parents=True)
    (heavy.parent / "__init__.py").touch()
    (heavy / "__init__.py").write_text("from light_import_toy.heavy.small import FOUND\nRAN = True")
    (heavy / "small.py").write_text("FOUND = 3")
    monkeypatch.syspath_prepend(tmp_path)
    return "light_import_toy.heavy"


def imported(name: str) -> list[str]:
    return [found for found in sys.modules if found.startswith(name)]


def test_a_module_is_imported_without_its_package(name: str) -> None:
    with without(name):
        assert import_module(f"{name}.small").FOUND == 3
        assert not hasattr(sys.modules[name], "RAN")
    assert imported(name) == []
    assert import_module(name).RAN
    with without(name):
        assert import_module(name).RAN
    assert sorted(imported(name)) == [name, f"{name}.small"]


def test_what_is_not_installed_is_missed_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError), without("eagle_aot_is_not.there"):
        import_module("eagle_aot_is_not.there")


def test_the_runtime_comes_without_its_compiler() -> None:
    """And without torch's, which takes as long."""
    code = (
        "import sys, eagle_aot.runtime_runner.runner;"
        "import eagle_aot.runtime_runner.executors.executorch;"
        "print([m for m in ('executorch.exir', 'torch._inductor', 'transformers', 'triton')"
        " if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stdout + run.stderr
