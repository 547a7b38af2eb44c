"""The experts' kernels on a GPU, at real shapes: against float64, and row by row."""

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.choose_experts import choose_experts, choose_experts_reference
from eagle_aot.triton_kernels.int4_experts import int4_experts
from eagle_aot.triton_kernels.int4_experts.op import experts_order
from eagle_aot.triton_kernels.int4_experts.reference import experts_order_reference
from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m
from support.kernels.experts_cases import Experts, float64_mixture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CASES = [
    Experts(128, 8, 2816, 704, symmetric=True),
    Experts(128, 8, 2048, 768, (128, 128), True, "silu"),
    Experts(16, 4, 512, 256, (32, 64)),
]
"""Gemma 4 26B-A4B, Qwen3-30B-A3B, and a small one with zero points."""


@pytest.fixture(autouse=True)
def few_rows_and_fresh_memory_of_nan() -> object:
    previous = set_matvec_max_m(64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    set_matvec_max_m(previous)


def mixture(case: Experts, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    return int4_experts(x, weights, ids, *case.packed("cuda"), case.activation)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_match_float64(case: Experts) -> None:
    for rows in (1, 4, 9, 33, 70):
        x, (weights, ids) = case.rows(rows, "cuda"), case.routes(rows, "cuda")
        parts, few = mixture(case, x, weights, ids), slice(0, 9)
        expected = float64_mixture(case, x[few], weights[few], ids[few])
        assert (parts.double().sum(0)[few] - expected).norm() < 5e-3 * expected.norm()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_other_rows_and_their_experts(case: Experts) -> None:
    """Rows by themselves, in steps of every width, among others, and in a prompt."""
    rows, (weights, ids) = case.rows(300, "cuda"), case.routes(300, "cuda")
    prompt = mixture(case, rows, weights, ids)
    for width in (*range(1, 18), 31, 32, 33, 48, 63, 64):
        for first in (0, 100):
            part = slice(first, first + width)
            together = mixture(case, rows[part], weights[part], ids[part])
            assert torch.equal(together, prompt[:, part]), width
    shared = ids.clone()
    shared[1:64] = ids[0]
    together = mixture(case, rows[:64], weights[:64], shared[:64])
    assert torch.equal(together[:, :1], prompt[:, :1])


def test_a_recorded_graph_follows_the_routes() -> None:
    case = CASES[0]
    x, (weights, ids) = case.rows(8, "cuda"), case.routes(8, "cuda")
    mixture(case, x, weights, ids)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = mixture(case, x, weights, ids)
    for seed in (1, 2):
        other_weights, other_ids = case.routes(8, "cuda", seed)
        weights.copy_(other_weights)
        ids.copy_(other_ids)
        graph.replay()
        assert torch.equal(recorded, mixture(case, x, weights, ids))


@pytest.mark.parametrize("rows", [1, 700, 1536])
def test_assignments_are_sorted_by_expert(rows: int) -> None:
    ids = CASES[0].routes(rows)[1]
    for result, expected in zip(
        experts_order(ids.cuda(), 128), experts_order_reference(ids, 128), strict=True
    ):
        assert torch.equal(result.cpu(), expected)


def test_the_choice_is_that_of_torch_and_ties_are_in_order() -> None:
    scores, per_expert = torch.randn(64, 128, device="cuda"), torch.rand(128, device="cuda")
    weights, ids = choose_experts(scores, per_expert, 8, True)
    expected, expected_ids = choose_experts_reference(scores, per_expert, 8, True)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    alone = choose_experts(scores[5:6], per_expert, 8, True)[0]
    assert torch.equal(alone, weights[5:6])
    equal = choose_experts(torch.zeros(2, 128, device="cuda").bfloat16(), None, 8, False)[1]
    assert equal.tolist() == 2 * [list(range(8))]
