"""Torch is asked once per kernel what it writes, and answers as before."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch._higher_order_ops import triton_kernel_wrap
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from eagle_aot.export.lowering.kernel_mutations import ANALYSES, memoised, mutations_memoised
from eagle_aot.targets.step import chain_tail
from eagle_aot.triton_kernels.copy_rows import copy_rows
from eagle_aot.triton_kernels.dense_gemm.op import dense_small_m
from eagle_aot.triton_kernels.int4_gemm.op import int4_large_m, int4_small_m
from eagle_aot.triton_kernels.residual_norm import residual_norm
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from support.kernels.h100 import analyse_for_h100
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
    """An analysis that names the arguments, and what it was asked."""

    asked: list[object] = field(default_factory=list)

    def __call__(self, kernel: object, kwargs: dict[str, Any], descriptors: Any) -> list[str]:
        self.asked.append(kernel)
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
    once = memoised(analyse)
    first, second = once(KERNEL, arguments(), {}), once(KERNEL, SAME[case](), {})
    assert first == second == ["x", "rows", "N"] and len(analyse.asked) == 1
    first.clear()
    assert once(KERNEL, arguments(), {}) == second


@pytest.mark.parametrize("case", APART)
def test_calls_whose_kernel_compiles_to_something_else_are_analysed_apart(case: str) -> None:
    analyse = Counter()
    once = memoised(analyse)
    for _ in range(2):
        assert once(KERNEL, arguments(), {}) == ["x", "rows", "N"]
        assert once(KERNEL, APART[case](), {}) == list(APART[case]())
    assert len(analyse.asked) == 2


def test_kernels_are_analysed_apart_and_a_tuner_is_its_kernel() -> None:
    analyse = Counter()
    once = memoised(analyse)
    other = object()
    for kernel in (KERNEL, other, *(Tuner(fn, [Config({})]) for fn in (KERNEL, other))):
        once(kernel, arguments(), {})
    assert analyse.asked == [KERNEL, other]
    for block in (16, 32, 16):
        once(Tuner(KERNEL, [Config({"BLOCK": block}), Config({"BLOCK": 64})]), arguments(), {})
    assert len(analyse.asked) == 4


@pytest.mark.parametrize(
    ("kwargs", "descriptors"),
    [
        (arguments(), {"x": "a descriptor"}),
        (arguments(shape=[1, 2]), {}),
        (arguments(x=torch.ones(2)), {}),
    ],
)
def test_what_may_count_by_more_is_analysed_anew(
    kwargs: dict[str, Any], descriptors: dict[str, str]
) -> None:
    analyse = Counter()
    once = memoised(analyse)
    for _ in range(2):
        once(KERNEL, kwargs, descriptors)
    assert len(analyse.asked) == 2


def test_another_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ANALYSES:
        monkeypatch.delattr(triton_kernel_wrap, name, raising=False)
    before = dict(vars(triton_kernel_wrap))
    with mutations_memoised():
        assert vars(triton_kernel_wrap) == before


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


def test_our_kernels_are_found_to_write_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    analyse_for_h100(monkeypatch)
    program = traced()
    expected, each = opened(program, nullcontext())
    found, once = opened(program, mutations_memoised())
    assert found == expected and 2 * once == len(found) <= each
