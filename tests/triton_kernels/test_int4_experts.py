"""The experts' operators on a CPU, in traced and in lowered graphs."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eagle_aot.triton_kernels.choose_experts import choose_experts
from eagle_aot.triton_kernels.int4_experts import int4_experts
from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m
from support.kernels.compiled import analyse_for_h100
from support.kernels.experts_cases import Experts, Packed, float64_mixture

CASE = Experts(6, 3, 64, 32)


@pytest.fixture(autouse=True)
def limit_of_an_export() -> Iterator[None]:
    previous = set_matvec_max_m(64)
    yield
    set_matvec_max_m(previous)


class Layer(nn.Module):
    """Rows, and scores for their experts."""

    def __init__(self) -> None:
        super().__init__()
        for name, packed in zip(("gate_up", "down"), CASE.packed(), strict=True):
            for part, tensor in zip(("codes", "scales", "zeros"), packed[:3], strict=True):
                assert isinstance(tensor, Tensor)
                self.register_buffer(f"{name}_{part}", tensor)

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        weights, ids = choose_experts(scores, None, CASE.top_k, True)
        return int4_experts(
            x, weights, ids, self.packed("gate_up"), self.packed("down"), CASE.activation
        )

    def packed(self, name: str) -> Packed:
        codes, scales, zeros = (
            self.get_buffer(f"{name}_{part}") for part in ("codes", "scales", "zeros")
        )
        return codes, scales, zeros, 64


def traced(low: int, high: int) -> ExportedProgram:
    rows = Dim("rows", min=low, max=high)
    inputs = CASE.rows(high), torch.randn(high, CASE.count)
    return torch.export.export(Layer(), inputs, dynamic_shapes=2 * ({0: rows},), strict=True)


@pytest.mark.parametrize("limit", [64, 4])
def test_the_cpu_operators_are_the_mixture_for_few_and_for_many_rows(limit: int) -> None:
    set_matvec_max_m(limit)
    x, (weights, ids) = CASE.rows(20), CASE.routes(20)
    parts = int4_experts(x, weights, ids, *CASE.packed(), CASE.activation)
    expected = float64_mixture(CASE, x, weights, ids)
    assert parts.shape == (3, 20, 64)
    assert (parts.double().sum(0) - expected).norm() < 1e-2 * expected.norm()


def test_a_weight_of_two_digits_multiplies_its_input_twice() -> None:
    x, (weights, ids) = CASE.rows(5), CASE.routes(5)
    packed = CASE.packed()
    wide = int4_experts(x[:, :32], weights, ids, *packed, "silu", (2, 1))
    assert torch.equal(wide, int4_experts(x[:, :32].repeat(1, 2), weights, ids, *packed, "silu"))


@pytest.mark.parametrize(("low", "high", "calls"), [(1, 8, 3), (1, 64, 5), (65, 512, 4)])
def test_a_graph_is_kernels_with_symbolic_rows(
    low: int, high: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only results are written; each range has the programs that it may need."""
    analyse_for_h100(monkeypatch)
    program = traced(low, high)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("experts" in name for name in names) == (3 if high <= 64 else 4)
    opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapped = torch.ops.higher_order.triton_kernel_wrapper_functional
    kernels = [node for node in opened.graph.nodes if node.target is wrapped]
    assert len(kernels) == calls
    for call in kernels:
        written = set(call.kwargs["tensors_to_clone"])
        assert written <= {"out_ptr", "weights_ptr", "ids_ptr", "order_ptr", "starts_ptr"}
