"""The INT4 operators in traced and lowered graphs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from eagle_aot.export.lowering.patches import CUDA, applied
from eagle_aot.triton_kernels.int4_gemm import (
    int4_gated_linear,
    int4_linear,
    int4_linear_reference,
    set_matvec_max_m,
)
from support.kernels.compiled import analyse_for_h100
from support.kernels.int4_cases import Case, tensors

SMALL_M = torch.ops.eagle_aot.int4_small_m.default
LARGE_M = torch.ops.eagle_aot.int4_large_m.default
CASE = Case(37, 128, 32)


@pytest.fixture(autouse=True)
def limit_of_an_export() -> Iterator[None]:
    previous = set_matvec_max_m(8)
    yield
    set_matvec_max_m(previous)


class Layer(nn.Module):
    """An INT4 linear between two pointwise operators."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(self, case: Case = CASE, splits: int = 1) -> None:
        super().__init__()
        codes, scales, zeros, self.features = tensors(case.packed())
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.splits = splits

    def forward(self, x: Tensor) -> Tensor:
        weight = self.codes, self.scales, self.zeros
        return int4_linear(x * 2, *weight, self.features, self.splits) + 1


def traced(layer: Layer, x: Tensor, low: int, high: int) -> ExportedProgram:
    rows = Dim("rows", min=low, max=high)
    return torch.export.export(layer, (x,), dynamic_shapes=({x.ndim - 2: rows},), strict=True)


def operators(program: ExportedProgram) -> list[object]:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def ranges(program: ExportedProgram) -> list[tuple[int, int]]:
    return [(int(r.lower), int(r.upper)) for r in program.range_constraints.values()]


@pytest.mark.parametrize("shape", [(1, 8, 128), (8, 128)])
def test_the_small_m_operator_is_one_node_for_a_range_of_rows(shape: tuple[int, ...]) -> None:
    layer = Layer()
    program = traced(layer, torch.zeros(shape).bfloat16(), 1, 8)
    aten = torch.ops.aten
    expected = [aten.mul.Tensor, SMALL_M, aten.flatten.using_ints, aten.add.Tensor]
    assert operators(program) == expected
    assert ranges(program) == [(1, 8)]
    for m in range(1, 9):
        x = CASE.rows(m).reshape(*shape[:-2], m, 128)
        assert torch.equal(program.module()(x), layer(x))


def test_decompositions_keep_the_operator() -> None:
    program = traced(Layer(), torch.zeros(1, 8, 128).bfloat16(), 1, 8)
    assert SMALL_M in operators(program.run_decompositions())


def test_many_rows_are_traced_as_the_large_m_operator() -> None:
    program = traced(Layer(), torch.zeros(1, 16, 128).bfloat16(), 9, 16)
    assert LARGE_M in operators(program) and SMALL_M not in operators(program)


def test_fake_weights_can_be_traced() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        program = traced(Layer(), torch.zeros(1, 8, 128).bfloat16(), 1, 8)
    assert SMALL_M in operators(program) and ranges(program) == [(1, 8)]


@pytest.mark.parametrize("case", [CASE, Case(300, 384, 128, symmetric=True)], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_the_cpu_operators_are_the_reference(case: Case, splits: int) -> None:
    weight, x = tensors(case.packed()), case.rows(5)
    expected = int4_linear_reference(x, *case.weight())
    small, large = (x, *weight, splits, ""), (x, *weight, "")
    assert torch.equal(SMALL_M(*small).sum(0).bfloat16(), expected)
    assert torch.equal(LARGE_M(*large), expected)
    for operator, arguments in ((SMALL_M, small), (LARGE_M, large)):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


LIMIT = "eagle_aot.triton_kernels.int4_gemm.api.MATVEC_MAX_M"


def test_a_raised_limit_uses_the_small_m_operator_for_any_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LIMIT, 40)
    layer, gated = Layer(splits=2), Case(48, 128, 32)
    program = traced(layer, torch.zeros(1, 8, 128).bfloat16(), 1, 40)
    assert SMALL_M in operators(program) and LARGE_M not in operators(program)
    assert ranges(program) == [(1, 40)]
    for m in (1, 8, 9, 40):
        assert torch.equal(program.module()(CASE.rows(m)), layer(CASE.rows(m)))
    monkeypatch.setattr("eagle_aot.triton_kernels.int4_gemm.api.int4_large_m", None)
    for splits in (1, 2):
        x, weight = gated.rows(9), tensors(gated.packed())
        assert int4_gated_linear(x, *weight, splits, "silu").shape == (1, 9, 24)


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Analyse kernels for an H100 and memoise what they write, as lowering does."""
    analyse_for_h100(monkeypatch)
    with applied(CUDA):
        yield


def kernel_calls(program: ExportedProgram) -> list[Any]:
    """Return the kernel calls of a program whose operators are decomposed."""
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    return [node for node in program.graph.nodes if node.target is wrapper]


@pytest.mark.parametrize(("rows", "splits", "limit", "calls"), [
    *[((1, 8), 1, 8, 1), ((1, 8), 3, 8, 1), ((9, 16), 1, 8, 1)],
    *[((1, 40), 3, 40, 4), ((1, 200), 1, 200, 8), ((17, 300), 1, 300, 6)],
])  # fmt: skip
def test_the_lowered_operator_is_kernels_with_symbolic_rows(
    h100: None,
    rows: tuple[int, int],
    splits: int,
    limit: int,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the output is written: written arguments would be copied before each call."""
    x = torch.zeros(1, rows[1], 384).bfloat16()
    monkeypatch.setattr(LIMIT, limit)
    program = traced(Layer(Case(37, 384, 32), splits), x, *rows)
    opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    assert len(kernel_calls(opened)) == calls and ranges(opened) == [rows]
    for call in kernel_calls(opened):
        assert call.kwargs["kwargs"]["rows"].target is torch.ops.aten.sym_size.int
        assert call.kwargs["tensors_to_clone"] == ["out_ptr"]


def test_each_number_of_rows_launches_exactly_one_kernel(
    h100: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels write one output, and lowering copies it between none of them."""
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core

    monkeypatch.setattr(LIMIT, 200)
    layer = Layer(Case(37, 384, 32))
    program = traced(layer, torch.zeros(1, 200, 384).bfloat16(), 1, 200)
    opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    calls = kernel_calls(opened)
    grids = [call.kwargs["grid"][0][0].meta["val"].node.expr for call in calls]
    (symbol,) = set().union(*(grid.free_symbols for grid in grids))
    for rows in range(1, 201):
        sizes = [int(grid.subs(symbol, rows)) for grid in grids]
        widths = 8, 16, 32, 48, 64, 80, 96, 1000
        used = min(i for i, width in enumerate(widths) if rows <= width)
        tiles = 1 if used < 7 else -(-rows // 64)
        assert sizes == [tiles if i == used else 0 for i in range(8)]
    reinplace_inplaceable_ops_core(opened.graph)
    assert [call.kwargs["tensors_to_clone"] for call in calls] == 8 * [[]]
