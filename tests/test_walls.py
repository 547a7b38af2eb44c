"""Allowed imports between folders, read from the source, so that lazy imports count too."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
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
    ("runtime_runner/decode", "triton_kernels"),
    ("runtime_runner/drafters", "triton_kernels"),
    ("runtime_runner/sampling", "triton_kernels"),
    ("runtime_runner/cli.py", "lab"),  # --plot
    ("src/eagle_aot/__init__.py", "export"),
    ("src/eagle_aot/__init__.py", "runtime_runner"),
}
"""Imports that are allowed in one place: kernels of a round, plots, and the names that the
package itself offers, which it imports on first use."""

TRANSFORMERS = re.compile(r"^\s*(?:from|import) transformers\b", re.MULTILINE)


@cache
def imports(path: Path) -> frozenset[str]:
    """The names that a file imports anywhere, with their modules."""
    return frozenset(_imports(ast.parse(path.read_text())))


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import, which names no folder"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> set[str]:
    """The parts of eagle_aot that a file imports, by their first name."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("eagle_aot.")}


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


KINDS = {
    "export.drafters.eagle3": "export/drafters/eagle3",
    "export.drafters.gemma4_assistant": "export/drafters/gemma4_assistant",
    "export.drafters.dflash": "export/drafters/dflash",
    "export.drafters.dflash2": "export/drafters/dflash2",
    "export.drafters.dspark": "export/drafters/dspark",
    "export.drafters.mtp": "export/drafters/mtp",
    "export.drafters.peagle": "export/drafters/peagle",
    "runtime_runner.drafters.eagle3": "runtime_runner/drafters/eagle3.py",
    "runtime_runner.drafters.gemma4_assistant": "runtime_runner/drafters/gemma4_assistant.py",
    "runtime_runner.drafters.dflash": "runtime_runner/drafters/dflash.py",
    "runtime_runner.drafters.dflash2": "runtime_runner/drafters/dflash2.py",
    "runtime_runner.drafters.dspark": "runtime_runner/drafters/dspark.py",
}
BUILT_ON = {
    "export.drafters.eagle3": ["export.drafters.peagle"],
    "export.drafters.dflash": ["export.drafters.dflash2", "export.drafters.dspark"],
    "runtime_runner.drafters.dflash": [
        *("runtime_runner.drafters.dflash2", "runtime_runner.drafters.dspark"),
    ],
}
"""Kinds that other kinds extend: a P-EAGLE head is an EAGLE-3 head, a DFlash2 or a DSpark head a
DFlash one."""
REGISTRIES = {"export/drafters/registry.py", "runtime_runner/drafters/__init__.py"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_registries_import_a_kind_of_drafter(kind: str) -> None:
    files = {path.relative_to(ROOT) for part in MAY_IMPORT for path in (ROOT / part).rglob("*.py")}
    importers = {
        str(file)
        for file in files
        if any(f"{name}.".startswith(f"eagle_aot.{kind}.") for name in imports(ROOT / file))
    }
    folders = tuple(KINDS[name] for name in (kind, *BUILT_ON.get(kind, [])))
    outside = {file for file in importers if not file.startswith(folders)}
    assert len(outside) == 1 and outside <= REGISTRIES


# Each package is imported in a fork of one process that has torch and its compiler already.
PROBE = """
import json, os, sys
import torch, torch._inductor.utils
modules = {}
for package in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:
        __import__(package)
        os.write(write, json.dumps([m for m in sys.modules if m.split(".")[0] in
                                    ("eagle_aot", "executorch")]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        modules[package] = json.loads(pipe.read())
print(json.dumps(modules))
"""

LAZY = {
    "eagle_aot.targets": "eagle_aot.triton_kernels.int4_gemm.small_m",
    "eagle_aot.triton_kernels.sdpa_splitk": "eagle_aot.triton_kernels.sdpa_splitk.kernel",
}
"""Packages that have kernels, which need triton, and one of these."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The modules of eagle_aot and executorch that the import of a package loads."""
    command = [sys.executable, "-c", PROBE, "eagle_aot.export", *LAZY]
    probe = subprocess.run(command, capture_output=True, text=True, check=True)
    modules: dict[str, list[str]] = json.loads(probe.stdout)
    return modules


def test_executorch_is_imported_only_by_the_runner_and_lowering(
    loaded: dict[str, list[str]],
) -> None:
    modules = [module for package in loaded.values() for module in package]
    assert "eagle_aot.export" in modules and "eagle_aot.targets" in modules
    assert not [module for module in modules if module.startswith("executorch")]


@pytest.mark.parametrize("package", LAZY)
def test_kernels_are_imported_lazily(loaded: dict[str, list[str]], package: str) -> None:
    kernel = LAZY[package]
    assert importlib.util.find_spec(kernel) and kernel.rpartition(".")[0] in loaded[package]
    assert kernel not in loaded[package]
