"""What replaces functions of Inductor and of the CUDA backend returns what they return.

The compiler itself needs a GPU; what it plans to compute does not.
"""

import hashlib
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import sympy  # type: ignore[import-untyped]  # it has no types
import torch
from torch import Tensor, nn

if not find_spec("triton"):
    pytest.skip("the CUDA backend needs triton to import", allow_module_level=True)

from executorch.backends.cuda import cuda_backend, cuda_weight_collector
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor import config, cpp_builder
from torch._inductor.ir import ExternKernel, TensorBox
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from eagle_aot.export.lowering.cuda_replacements import (
    analyse_once,
    compile_cuda_here,
    object_per_kernel,
    put_in_memory,
    write_holes,
    zeros_without_memory,
)
from eagle_aot.export.lowering.patches import CUDA, applied
from eagle_aot.targets.step import chain_tail
from eagle_aot.triton_kernels.copy_rows import copy_rows
from eagle_aot.triton_kernels.dense_gemm.op import dense_small_m
from eagle_aot.triton_kernels.int4_gemm.op import int4_large_m, int4_small_m
from eagle_aot.triton_kernels.residual_norm import residual_norm
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from support.kernels.compiled import analyse_for_h100
from support.kernels.int4_cases import Case, tensors
from support.kernels.residual_cases import Case as ResidualCase


@dataclass
class Config:
    kwargs: dict[str, Any]


@dataclass
class Tuner:
    """As `triton.runtime.Autotuner`: made anew for each call."""

    fn: object
    configs: list[Config]


@dataclass
class Counter:
    """An analysis that names the arguments, and records the kernels."""

    kernels: list[object] = field(default_factory=list)

    def __call__(self, kernel: object, kwargs: dict[str, Any], descriptors: Any) -> list[str]:
        self.kernels.append(kernel)
        return list(kwargs)


def fake(dtype: torch.dtype, *shape: int) -> Tensor:
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype)


def arguments(**others: Any) -> dict[str, Any]:
    return {"x": fake(torch.bfloat16, 8), "rows": sympy.Symbol("s0"), "N": 16} | others


SAME: dict[str, Callable[[], dict[str, Any]]] = {
    "another tensor": lambda: arguments(x=fake(torch.bfloat16, 3, 5)),
    "another symbol": lambda: arguments(rows=sympy.Symbol("s1") + 1),
}
APART: dict[str, Callable[[], dict[str, Any]]] = {
    "dtype": lambda: arguments(x=fake(torch.float32, 8)),
    "number": lambda: arguments(N=17),
    "type": lambda: arguments(N=16.0),
    "truth": lambda: arguments(N=True),
    "known": lambda: arguments(rows=2),
    "absent": lambda: arguments(x=None),
    "option": lambda: arguments(num_warps=4),
    "order": lambda: dict(reversed(arguments().items())),
}
KERNEL = object()


@pytest.mark.parametrize("case", SAME)
def test_calls_that_differ_in_shapes_and_symbols_are_analysed_once(case: str) -> None:
    analyse = Counter()
    memoised = analyse_once(analyse)
    first, second = memoised(KERNEL, arguments(), {}), memoised(KERNEL, SAME[case](), {})
    assert first == second == ["x", "rows", "N"] and len(analyse.kernels) == 1
    first.clear()
    assert memoised(KERNEL, arguments(), {}) == second


@pytest.mark.parametrize("case", APART)
def test_calls_whose_kernel_compiles_to_something_else_are_analysed_apart(case: str) -> None:
    analyse = Counter()
    memoised = analyse_once(analyse)
    for _ in range(2):
        assert memoised(KERNEL, arguments(), {}) == ["x", "rows", "N"]
        assert memoised(KERNEL, APART[case](), {}) == list(APART[case]())
    assert len(analyse.kernels) == 2


def test_kernels_are_analysed_apart_and_a_tuner_is_its_kernel() -> None:
    analyse = Counter()
    memoised = analyse_once(analyse)
    other = object()
    for kernel in (KERNEL, other, *(Tuner(fn, [Config({})]) for fn in (KERNEL, other))):
        memoised(kernel, arguments(), {})
    assert analyse.kernels == [KERNEL, other]
    for block in (16, 32, 16):
        memoised(Tuner(KERNEL, [Config({"BLOCK": block}), Config({"BLOCK": 64})]), arguments(), {})
    assert len(analyse.kernels) == 4


@pytest.mark.parametrize(("kwargs", "descriptors"), [
    (arguments(), {"x": "a descriptor"}),
    (arguments(shape=[1, 2]), {}),
    (arguments(x=torch.ones(2)), {}),
])  # fmt: skip
def test_kernels_with_other_arguments_are_analysed_anew(
    kwargs: dict[str, Any], descriptors: dict[str, str]
) -> None:
    analyse = Counter()
    memoised = analyse_once(analyse)
    for _ in range(2):
        memoised(KERNEL, kwargs, descriptors)
    assert len(analyse.kernels) == 2


def test_what_a_kernel_takes_is_in_memory_when_its_strides_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    realized: list[object] = []
    monkeypatch.setattr(TensorBox, "realize", lambda box: realized.append(id(box)))
    box, number = TensorBox.__new__(TensorBox), sympy.Integer(7)
    monkeypatch.setattr(ExternKernel, "require_strides", put_in_memory(lambda *given: given))
    for value in (box, number):
        found: Any = ExternKernel.require_strides(value, [1, 0])
        assert found[0] is value and found[1] == [1, 0]
    assert realized == [id(box)]


class Twice(nn.Module):
    """Every kernel of ours, and everything again with other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tensors(Case(128, 128, 32).packed())
        self.norm, *self.eps = ResidualCase(2, 2, 128, False, False).arguments()[4:]

    def forward(self, x: Tensor, q: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        return *self.once(x, q, positions), *self.once(2 * x, 2 * q, positions)

    def once(self, x: Tensor, q: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        weight, norm, eps = self.weight, self.norm, self.eps
        parts = int4_small_m(x, *weight, 2, "")
        whole = int4_small_m(x, *weight, 1, "silu"), int4_large_m(x, *weight, "")
        scale = torch.ones(1, dtype=torch.bfloat16)
        norms = residual_norm(parts, x, None, None, norm, *eps)
        norms += residual_norm(whole[1].unsqueeze(0), x, norm, scale, norm, *eps)
        cache = torch.zeros(2, 1, 64, 64, dtype=torch.bfloat16)
        step = positions, torch.zeros(1, dtype=torch.int64), chain_tail(positions)
        dense = dense_small_m(x, torch.zeros(64, 128, dtype=torch.bfloat16), 2)
        copied = [torch.zeros(2, 64, 64, dtype=torch.bfloat16) for _ in range(2)]
        copy_rows(*copied, positions[0], positions[0] + 8)
        return *whole, *norms, *copied, dense, sdpa_splitk(q, cache, cache, *step, 1.0, 0, 0)


def traced() -> ExportedProgram:
    x = torch.zeros(1, 8, 128, dtype=torch.bfloat16)
    q, positions = torch.zeros(1, 8, 4, 64, dtype=torch.bfloat16), torch.arange(8).unsqueeze(0)
    rows = Dim("rows", min=1, max=8)
    shapes = {1: rows}, {1: rows}, {1: rows}
    return torch.export.export(Twice(), (x, q, positions), dynamic_shapes=shapes, strict=False)


def opened(
    program: ExportedProgram, memo: AbstractContextManager[None]
) -> tuple[list[object], int]:
    """What each kernel is found to write, in a program lowered so far, and the kernels compiled."""
    compiled: list[object] = []
    compile_kernel = triton_kernel_wrap.generate_ttir

    def count(kernel: object, *arguments: Any) -> object:
        compiled.append(kernel)
        return compile_kernel(kernel, *arguments)

    with patch.object(triton_kernel_wrap, "generate_ttir", count), memo:
        lowered = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    nodes = [node for node in lowered.graph.nodes if node.target is wrapper]
    return [node.kwargs["tensors_to_clone"] for node in nodes], len(compiled)


@pytest.mark.slow
def test_our_kernels_are_found_to_write_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    analyse_for_h100(monkeypatch)
    program = traced()
    expected, each = opened(program, nullcontext())
    written, once = opened(program, applied(CUDA))
    assert written == expected and 2 * once == len(written) <= each


@pytest.mark.parametrize(("argument", "threads"), [("CUDA: tl.constexpr", 1), ("n", 7)])
def test_cuda_is_compiled_in_this_process(argument: str, threads: int) -> None:
    seen: list[Any] = []
    compile_kernel = compile_cuda_here(lambda *arguments: seen.append(config.compile_threads))
    with config.patch(compile_threads=7):
        compile_kernel(None, "kernel_0", f"@triton.jit\ndef name(x, {argument}):\n    pass", "cuda")
        assert config.compile_threads == 7
    assert seen == [threads]


@pytest.mark.parametrize("value", [0, 1])
def test_a_storage_is_the_same_file_and_zeros_take_no_blocks(tmp_path: Path, value: int) -> None:
    tensor = torch.full((3, 5_000_001), value, dtype=torch.uint8)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    wanted = cuda_weight_collector._write_tensor_storage(tensor, str(theirs))
    digest = write_holes(cuda_weight_collector._write_tensor_storage)(tensor, str(ours))
    assert ours.read_bytes() == theirs.read_bytes()
    assert digest == wanted == hashlib.sha256(ours.read_bytes()).digest()
    assert (ours.stat().st_blocks == 0) is (value == 0), "only zeros are left out"


def test_zeros_of_a_cache_have_the_same_form() -> None:
    emptied = torch.empty(4, 6, dtype=torch.float16).t()
    wanted = cuda_backend._full_zeros_preserving_strides(emptied, "cpu")
    zeros = zeros_without_memory(cuda_backend._full_zeros_preserving_strides)(emptied, "cpu")
    assert torch.equal(zeros, wanted) and zeros.stride() == wanted.stride()
    assert zeros.untyped_storage().nbytes() == wanted.untyped_storage().nbytes()


KERNELS = ["draft_0", "draft_1"]


def linked(convert: Callable[..., str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Link both kernels' objects into one library, as AOTInductor of torch 2.11 does."""
    binary = directory / "same.cubin"
    binary.write_bytes(b"code of both")
    of_both = [convert(str(binary), name, "ld", "objcopy") for name in KERNELS]
    command = ["g++", "-shared", "-o", str(directory / "linked.so"), *of_both]
    return subprocess.run(command, capture_output=True, text=True)


def test_kernels_of_the_same_code_are_linked(tmp_path: Path) -> None:
    assert linked(object_per_kernel(cpp_builder.convert_cubin_to_obj), tmp_path).returncode == 0
    symbols = subprocess.run(["nm", tmp_path / "linked.so"], capture_output=True, text=True).stdout
    for name in KERNELS:
        assert f"__{name}_start" in symbols


def test_kernels_of_the_same_code_fail_to_link_in_pytorch_alone(tmp_path: Path) -> None:
    """If PyTorch comes to do this itself, the replacement can go."""
    assert "multiple definition" in linked(cpp_builder.convert_cubin_to_obj, tmp_path).stderr
