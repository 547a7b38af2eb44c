"""Which packages may import others, checked in a fresh interpreter and in the source."""

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

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

FORBIDDEN = {
    "eagle_aot.triton_kernels.int4_gemm": ("export", "targets", "runtime_runner", "errors"),
    "eagle_aot.triton_kernels.sdpa_splitk": ("export", "targets", "runtime_runner", "errors"),
    "eagle_aot.triton_kernels.residual_norm": ("export", "targets", "runtime_runner", "errors"),
    "eagle_aot.targets": ("export", "runtime_runner"),
    "eagle_aot.export": ("runtime_runner",),
}


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    command = [sys.executable, "-c", PROBE, *FORBIDDEN]
    probe = subprocess.run(command, capture_output=True, text=True, check=True)
    modules: dict[str, list[str]] = json.loads(probe.stdout)
    return modules


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_do_not_import_forbidden_packages(
    imported: dict[str, list[str]], package: str
) -> None:
    modules = imported[package]
    assert package in modules
    for other in FORBIDDEN[package]:
        name = f"eagle_aot.{other}"
        assert not [m for m in modules if m == name or m.startswith(f"{name}.")]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_executorch_is_imported_only_by_the_runner_and_lowering(
    imported: dict[str, list[str]], package: str
) -> None:
    assert not [m for m in imported[package] if m.startswith("executorch")]


@pytest.mark.parametrize("package", [p for p in FORBIDDEN if ".triton_kernels." in p])
def test_kernels_import_only_kernels(imported: dict[str, list[str]], package: str) -> None:
    modules = imported[package]
    ours = {m for m in modules if m.startswith("eagle_aot.")}
    assert {m.split(".")[1] for m in ours} == {"triton_kernels"}


KERNELS = {
    "eagle_aot.targets": "eagle_aot.triton_kernels.int4_gemm.small_m",
    "eagle_aot.triton_kernels.sdpa_splitk": "eagle_aot.triton_kernels.sdpa_splitk.kernel",
}


@pytest.mark.parametrize("package", KERNELS)
def test_kernels_are_imported_lazily(imported: dict[str, list[str]], package: str) -> None:
    kernel = KERNELS[package]
    assert importlib.util.find_spec(kernel) and kernel.rpartition(".")[0] in imported[package]
    assert kernel not in imported[package]


ROOT = Path(__file__).parents[2]
ROOMS = ("export", "runtime_runner", "targets", "triton_kernels", "src/eagle_aot")
KINDS = {
    "export.drafters.eagle3": "export/drafters/eagle3",
    "export.drafters.gemma4_assistant": "export/drafters/gemma4_assistant",
    "export.drafters.dflash": "export/drafters/dflash",
    "export.drafters.peagle": "export/drafters/peagle",
    "runtime_runner.drafters.eagle3": "runtime_runner/drafters/eagle3.py",
    "runtime_runner.drafters.gemma4_assistant": "runtime_runner/drafters/gemma4_assistant.py",
    "runtime_runner.drafters.dflash": "runtime_runner/drafters/dflash.py",
    "runtime_runner.drafters.peagle": "runtime_runner/drafters/peagle.py",
}
BUILT_ON = {
    "export.drafters.eagle3": "export.drafters.peagle",
    "runtime_runner.drafters.eagle3": "runtime_runner.drafters.peagle",
}
"""Kinds that extend another kind: a P-EAGLE head is an EAGLE-3 head."""
REGISTRIES = {"export/drafters/registry.py", "runtime_runner/drafters/__init__.py"}


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the names that a file imports anywhere, with their modules."""
    return frozenset(_imports(ast.parse(path.read_text())))


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("kind", KINDS)
def test_only_registries_import_a_kind_of_drafter(kind: str) -> None:
    files = {path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    importers = {
        str(file)
        for file in files
        if any(f"{name}.".startswith(f"eagle_aot.{kind}.") for name in imports(ROOT / file))
    }
    folders = tuple(KINDS[name] for name in (kind, BUILT_ON.get(kind, kind)))
    outside = {file for file in importers if not file.startswith(folders)}
    assert len(outside) == 1 and outside <= REGISTRIES
