"""Which packages may know of which: seen in a fresh interpreter."""

import json
import subprocess
import sys

import pytest

# Each package is imported in a fork of one process that has paid for torch already.
PROBE = """
import json, os, sys
import torch
found = {}
for package in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:
        __import__(package)
        os.write(write, json.dumps([m for m in sys.modules if m.split(".")[0] in
                                    ("eagle_aot", "executorch", "triton")]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found[package] = json.loads(pipe.read())
print(json.dumps(found))
"""

FORBIDDEN = {
    "eagle_aot.triton_kernels.int4_gemm": ("export", "targets", "runtime_runner", "errors"),
    "eagle_aot.triton_kernels.sdpa_splitk": ("export", "targets", "runtime_runner", "errors"),
    "eagle_aot.triton_kernels.residual_norm": ("export", "targets", "runtime_runner", "errors"),
    "eagle_aot.targets": ("export", "runtime_runner"),
    "eagle_aot.export": ("runtime_runner",),
    "eagle_aot.runtime_runner": ("targets", "export", "triton_kernels"),
}


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    command = [sys.executable, "-c", PROBE, *FORBIDDEN]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    modules: dict[str, list[str]] = json.loads(found.stdout)
    return modules


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_does_not_import_what_it_must_not_know(
    imported: dict[str, list[str]], package: str
) -> None:
    modules = imported[package]
    assert package in modules
    for other in FORBIDDEN[package]:
        name = f"eagle_aot.{other}"
        assert not [m for m in modules if m == name or m.startswith(f"{name}.")]


@pytest.mark.parametrize("package", [p for p in FORBIDDEN if p != "eagle_aot.runtime_runner"])
def test_only_the_runner_and_the_lowering_need_executorch(
    imported: dict[str, list[str]], package: str
) -> None:
    assert not [m for m in imported[package] if m.startswith("executorch")]


@pytest.mark.parametrize("package", [p for p in FORBIDDEN if ".triton_kernels." in p])
def test_kernels_import_nothing_else_of_this_project(
    imported: dict[str, list[str]], package: str
) -> None:
    modules = imported[package]
    ours = {m for m in modules if m.startswith("eagle_aot.")}
    assert {m.split(".")[1] for m in ours} == {"triton_kernels"}
