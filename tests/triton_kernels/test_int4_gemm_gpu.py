"""The INT4 kernel on a GPU, at real shapes: against float64, and row by row."""

import pytest
import torch

from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m
from eagle_aot.triton_kernels.int4_gemm.reference import int4_linear_reference
from int4_cases import Case, assert_float32_sums, float64_product

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SLACK = 1e-5
"""Of sums in float32 in the order of a tensor core, relative to the sum of magnitudes."""

CASES = [
    Case(5376, 21504, 128, torch.bfloat16),  # split along K
    Case(43008, 5376, 128, torch.bfloat16),  # not split
    Case(1024, 5376, 32, torch.bfloat16),
    Case(1000, 2048, 64, torch.bfloat16),
    Case(37, 288, 48, torch.bfloat16),
    Case(37, 512, 16, torch.float16),
    Case(640, 2560, 2560, torch.bfloat16),  # one group a row
    Case(1024, 2048, 128, torch.float32),
    Case(256, 256, 32, torch.float32),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("m", [1, 3, 8])
def test_the_product_is_summed_in_float32(case: Case, m: int) -> None:
    weight = case.weight("cuda")
    x = case.rows(m, "cuda")
    assert_float32_sums(int4_small_m(x, *weight), x, weight, SLACK)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    weight = case.weight("cuda")
    x = case.rows(8, "cuda")
    together = int4_small_m(x, *weight)
    assert torch.equal(int4_small_m(x, *weight), together)
    for m in range(1, 8):
        assert torch.equal(int4_small_m(x[:, :m], *weight), together[:, :m])
    for row in range(8):
        alone = int4_small_m(x[:, row : row + 1], *weight)
        assert torch.equal(alone[:, 0], together[:, row])


def test_fractional_zero_points_cost_no_more_than_dequantising() -> None:
    case = Case(512, 4096, 32, torch.bfloat16)
    weight = case.weight("cuda", integer_zeros=False)
    x = case.rows(8, "cuda")
    exact, _ = float64_product(x, weight)
    error = (int4_small_m(x, *weight) - exact).square().mean()
    assert error <= (int4_linear_reference(x, *weight) - exact).square().mean()


def test_a_strided_input_is_read_as_it_is_meant() -> None:
    case = Case(256, 512, 32, torch.bfloat16)
    weight = case.weight("cuda")
    x = case.rows(8, "cuda")
    strided = x.mT.contiguous().mT
    assert torch.equal(int4_small_m(strided, *weight), int4_small_m(x, *weight))
