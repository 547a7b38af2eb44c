"""Which folder may import which, read from the source, so that a lazy import counts too."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMON = {"artifact", "common"}
MAY_IMPORT = {
    "src/eagle_aot": COMMON,
    "triton_kernels": {"triton_kernels"},
    "targets": {"targets", "triton_kernels", *COMMON},
    "export": {"export", "targets", "triton_kernels", *COMMON},
    "runtime_runner": {"runtime_runner", *COMMON},
}
EXCEPTIONS = {
    ("runtime_runner/drafters", "triton_kernels"),
    ("runtime_runner/sampling", "triton_kernels"),
    ("runtime_runner/cli.py", "lab"),  # --plot
}
"""Imports that are allowed in one place: kernels that choose tokens, and plots."""

TRANSFORMERS = re.compile(r"^\s*(?:from|import) transformers\b", re.MULTILINE)


@cache
def imported(path: Path) -> frozenset[str]:
    """The parts of eagle_aot that a file imports, by their first name."""
    return frozenset(_imported(ast.parse(path.read_text())))


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("eagle_aot."))


def allowed(file: str, part: str) -> bool:
    return any(file.startswith(place) and part == other for place, other in EXCEPTIONS)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_imports_only_what_lies_below_it(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    wrong = [
        f"{file} imports {part}"
        for path in files
        for part in sorted(imported(path) - MAY_IMPORT[folder] - {"__version__"})
        if not allowed(file := str(path.relative_to(ROOT)), part)
    ]
    assert not wrong


@pytest.mark.parametrize(("place", "part"), sorted(EXCEPTIONS - {("runtime_runner/cli.py", "lab")}))
def test_every_exception_is_used(place: str, part: str) -> None:
    path = ROOT / place
    files = [path] if path.is_file() else path.rglob("*.py")
    assert any(part in imported(file) for file in files)


def test_the_runner_imports_transformers_for_images_alone() -> None:
    """Its import takes seconds, which an answer to a text need not wait for."""
    files = [*(ROOT / "runtime_runner").rglob("*.py"), *(ROOT / "src").rglob("*.py")]
    importing = {
        str(path.relative_to(ROOT)) for path in files if re.search(TRANSFORMERS, path.read_text())
    }
    assert importing == {"runtime_runner/images/reader.py"}
