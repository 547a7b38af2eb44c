"""The residual norm without a GPU: its reference and its operator."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from eagle_aot.targets.decoder.layer import add_branch
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.triton_kernels.residual_norm import residual_norm, residual_norm_reference
from support.kernels.residual_cases import CASES, EPS, Case, assert_close

OPERATOR = torch.ops.eagle_aot.residual_norm.default


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_the_reference_matches_float64(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    arguments = case.arguments(dtype=dtype)
    assert_close(residual_norm_reference(*arguments), arguments, tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_operator_is_the_reference(case: Case) -> None:
    arguments = case.arguments()
    for a, b in zip(residual_norm(*arguments), residual_norm_reference(*arguments), strict=True):
        assert torch.equal(a, b)
    torch.library.opcheck(OPERATOR, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_add_branch_gives_the_same_bits_for_parts_and_their_sum(case: Case) -> None:
    """The operator rounds where the separate modules do."""
    parts, stream, post, scale, weight, *_ = case.arguments()
    norms = [RMSNorm(case.hidden, EPS, torch.bfloat16) for _ in range(2)]
    for norm, values in zip(norms, (weight, post), strict=True):
        if values is not None:
            norm.weight = nn.Parameter(values)
    rest = norms[0], norms[1] if case.post else None, scale
    whole = parts.sum(0).to(stream.dtype)
    with torch.no_grad():
        pairs = zip(add_branch(parts, stream, *rest), add_branch(whole, stream, *rest), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


class Branch(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        _, _, self.post, self.scale, self.weight, *self.eps = case.arguments()

    def forward(self, parts: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        return residual_norm(parts, stream, self.post, self.scale, self.weight, *self.eps)


def test_the_traced_operator_is_one_node_for_any_number_of_rows() -> None:
    case = Case(3, 8, 64, post=True, scaled=True)
    rows = Dim("rows", min=1, max=8)
    parts, stream, *_ = case.arguments()
    program = torch.export.export(
        Branch(case), (parts, stream), dynamic_shapes=({2: rows}, {1: rows}), strict=True
    )
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count(OPERATOR) == 1
    (bounds,) = program.range_constraints.values()
    assert (int(bounds.lower), int(bounds.upper)) == (1, 8)
