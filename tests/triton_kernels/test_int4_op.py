"""The small-M operator: what is traced, and on machines without triton too."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from eagle_aot.triton_kernels.int4_gemm import int4_linear, matvec_max_m, set_matvec_max_m
from eagle_aot.triton_kernels.int4_gemm.reference import int4_linear_reference
from int4_cases import Case

SMALL_M = torch.ops.eagle_aot.int4_small_m.default
CASE = Case(37, 128, 32, torch.float32)


@pytest.fixture(autouse=True)
def limit_of_an_export() -> Iterator[None]:
    before = set_matvec_max_m(8)
    yield
    set_matvec_max_m(before)


class Layer(nn.Module):
    """An INT4 linear between two pointwise operators."""

    def __init__(self, case: Case = CASE) -> None:
        super().__init__()
        for name, tensor in zip(("qdata", "scale", "zero_point"), case.weight(), strict=True):
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return int4_linear(x * 2, self.qdata, self.scale, self.zero_point) + 1


def traced(layer: Layer, x: Tensor, low: int, high: int) -> ExportedProgram:
    rows = Dim("rows", min=low, max=high)
    return torch.export.export(layer, (x,), dynamic_shapes=({x.ndim - 2: rows},), strict=True)


def operators(program: ExportedProgram) -> list[object]:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def ranges(program: ExportedProgram) -> list[tuple[int, int]]:
    return [(int(r.lower), int(r.upper)) for r in program.range_constraints.values()]


@pytest.mark.parametrize("shape", [(1, 8, 128), (8, 128)])
def test_a_linear_of_few_rows_is_one_node_for_all_of_them(shape: tuple[int, ...]) -> None:
    layer = Layer()
    program = traced(layer, torch.zeros(shape), 1, 8)
    aten = torch.ops.aten
    assert operators(program) == [aten.mul.Tensor, SMALL_M, aten.add.Tensor]
    assert ranges(program) == [(1, 8)]
    for m in range(1, 9):
        x = CASE.rows(m).reshape(*shape[:-2], m, 128)
        assert torch.equal(program.module()(x), layer(x))


def test_the_node_survives_the_decompositions_of_a_lowering() -> None:
    program = traced(Layer(), torch.zeros(1, 8, 128), 1, 8)
    assert SMALL_M in operators(program.run_decompositions())


def test_many_rows_are_dequantised() -> None:
    program = traced(Layer(), torch.zeros(1, 16, 128), 9, 16)
    assert SMALL_M not in operators(program) and torch.ops.aten.linear.default in operators(program)


def test_weights_that_are_not_there_can_be_traced() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = Layer()
        program = traced(layer, torch.zeros(1, 8, 128), 1, 8)
    assert SMALL_M in operators(program) and ranges(program) == [(1, 8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_cpu_it_is_the_reference(dtype: torch.dtype) -> None:
    case = Case(37, 128, 32, dtype)
    weight, x = case.weight(), case.rows(5)
    assert torch.equal(SMALL_M(x, *weight), int4_linear_reference(x, *weight))
    torch.library.opcheck(SMALL_M, (x, *weight), test_utils=("test_schema", "test_faketensor"))


def test_more_rows_than_it_serves_are_refused() -> None:
    weight = CASE.weight()
    with pytest.raises(RuntimeError, match="int4_small_m serves 8 rows"):
        SMALL_M(CASE.rows(9), *weight)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match="int4_small_m serves 8 rows"):
        SMALL_M(*map(mode.from_tensor, (CASE.rows(9), *weight)))


@pytest.mark.parametrize(
    ("case", "x"),
    [
        (CASE, torch.ones(2, 3, 128)),  # a batch: six rows, not three
        (CASE, torch.ones(1, 3, 128, dtype=torch.float64)),
        (Case(37, 10, 5, torch.float32), torch.ones(1, 3, 10)),  # groups end inside a byte
    ],
    ids=["batch", "float64", "odd group"],
)
def test_what_the_kernel_cannot_take_is_dequantised(case: Case, x: Tensor) -> None:
    program = torch.export.export(Layer(case), (x,), strict=True)
    assert SMALL_M not in operators(program)
    assert torch.equal(program.module()(x), Layer(case)(x))


class H100:
    """What Triton asks of a driver when it compiles; no GPU need be there."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(triton.runtime.driver, "_active", H100())


@pytest.mark.parametrize(("n", "kernels"), [(37, 2), (64 * 528, 1)])
def test_lowered_for_a_gpu_it_is_the_kernel_with_its_rows_unknown(
    h100: None, n: int, kernels: int
) -> None:
    """A weight of few rows is split along K, and a second kernel adds the parts.

    Whatever a kernel is believed to write is copied before each call: not the weight.
    """
    program = traced(Layer(Case(n, 128, 32, torch.float32)), torch.zeros(1, 8, 128), 1, 8)
    opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    calls = [node for node in opened.graph.nodes if node.target is wrapper]
    assert len(calls) == kernels and ranges(opened) == [(1, 8)]
    for call in calls:
        assert call.kwargs["kwargs"]["rows"].target is torch.ops.aten.sym_size.int
        assert call.kwargs["tensors_to_clone"] == ["out_ptr"]


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
import torch
from torch.export import Dim
from eagle_aot.triton_kernels.int4_gemm import int4_linear

class Layer(torch.nn.Module):
    def forward(self, x, qdata, scale, zero_point):
        return int4_linear(x, qdata, scale, zero_point)

weight = torch.zeros(6, 16, dtype=torch.uint8), torch.ones(2, 6), torch.ones(2, 6)
inputs = torch.ones(1, 4, 32), *weight
shapes = {1: Dim("rows", min=1, max=4)}, None, None, None
program = torch.export.export(Layer(), inputs, dynamic_shapes=shapes, strict=True)
print([node.name for node in program.graph.nodes if node.op == "call_function"])
print(program.module()(*inputs).unique().tolist())
"""


def test_importing_tracing_and_running_on_a_cpu_need_no_triton() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True)
    assert run.stdout.split("\n") == ["['int4_small_m']", "[-32.0]", ""], run.stderr
    assert "Triton not available" not in run.stderr  # what `triton_op` would say


KERNEL = "eagle_aot.triton_kernels.int4_gemm.kernel"
IMPORTED = f"import sys, eagle_aot.targets; print({KERNEL!r} in sys.modules)"


def test_the_kernel_is_not_imported_before_it_is_needed() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr


def test_outside_an_export_the_limit_is_four() -> None:
    set_matvec_max_m(4)
    assert matvec_max_m() == 4
    program = traced(Layer(), torch.zeros(1, 8, 128), 5, 8)
    assert SMALL_M not in operators(program)
