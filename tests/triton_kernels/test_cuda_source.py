"""CUDA C++ in place of Triton kernels: for which it is compiled, and what is said if it is not."""

import ast
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from eagle_aot.triton_kernels import cuda_source

TARGET = {"target": SimpleNamespace(arch=90)}
SOURCE = cuda_source.FOLDER / "layer_products" / "kernel.cu"


def test_other_kernels_are_assembled_as_before() -> None:
    stages: dict[str, Any] = {
        "ptx": lambda module, metadata: f"{module}.ptx",
        "cubin": lambda ptx, metadata: ptx.encode(),
    }
    cuda_source.replace_stage(None, stages, None)
    assert stages["cubin"](stages["ptx"]("mov", {}), {}) == b"mov.ptx"


def test_a_kernel_names_its_source_with_all_that_decides_its_code() -> None:
    text = cuda_source.described(SOURCE, "HEADS=8 SCALE=1e-05", 64, 1024)
    macros = "heads=8 scale=1e-05 shared=1024 launched=64"
    name = "layer_products/kernel.cu"
    assert text == f"{cuda_source.MARK} {name} {cuda_source.digest()} {macros}"


def test_sources_are_compiled_only_where_that_is_said() -> None:
    assert not cuda_source.is_compiling()
    with cuda_source.compiled_from_cuda():
        assert cuda_source.is_compiling()
    assert not cuda_source.is_compiling()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", "/nowhere")
    with pytest.raises(RuntimeError, match="/nowhere/bin/nvcc: not found: set CUDA_HOME"):
        cuda_source.nvcc("-ptx", SOURCE, [], TARGET)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, of a CUDA toolkit")
def test_what_the_compiler_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path(str(shutil.which("nvcc"))).parents[1])
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", home)
    widths = "HIDDEN MLP O_SPLITS O_STEPS DOWN_SPLITS BLOCKS PAIR"
    sizes = [f"-D{name}=128" for name in (*widths.split(), "LAUNCHED", "SHARED")]
    with pytest.raises(RuntimeError, match=r"as kernel\.py has it"):
        cuda_source.nvcc("-ptx", SOURCE, sizes, TARGET)


def test_stand_ins_take_numbers_as_they_come() -> None:
    """Where torch 2.11 analyses a kernel, a number is no tensor: with an attribute of it the
    analysis fails, torch takes all arguments for written, and no runner opens the program."""
    trees = (ast.parse(path.read_text()) for path in cuda_source.FOLDER.rglob("*.py"))
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    stand_ins = [f for f in functions if f.args.args and f.args.args[-1].arg == "CUDA"]
    assert len(stand_ins) == 4
    for function in stand_ins:
        numbers = {a.arg for a in function.args.args if not a.arg.endswith("_ptr")}
        attributes = (n for n in ast.walk(function) if isinstance(n, ast.Attribute))
        used = {n.value.id for n in attributes if isinstance(n.value, ast.Name)}
        assert not used & numbers, function.name
