"""The INT4 kernels on a GPU, at real shapes: against float64, and row by row."""

import pytest
import torch

from eagle_aot.triton_kernels.int4_gemm import choose_splits, int4_linear_reference, pack
from eagle_aot.triton_kernels.int4_gemm.op import int4_large_m, int4_small_m
from support.kernels.int4_cases import (
    Case,
    assert_rounded_weight,
    float64_gated,
    float64_product,
    tensors,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SLACK = 1e-5
"""Error of float32 sums in the order of a tensor core, relative to the sum of magnitudes."""

CASES = [
    Case(16384, 5376, 32, symmetric=True),
    Case(5376, 21504, 128),
    Case(43008, 5376, 128, symmetric=True),
    Case(1024, 5376, 32),
    Case(1000, 2048, 64),
    Case(333, 1120, 32, symmetric=True),
    Case(37, 288, 96),
    Case(640, 2560, 2560),  # one group a row
]


@pytest.fixture(autouse=True)
def fresh_memory_holds_nan() -> object:
    """Make outputs that a kernel does not write visible."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def splits_of(case: Case) -> int:
    return choose_splits(case.n, case.packed("cuda").scales.shape[1], 132)


def test_fresh_memory_holds_nan() -> None:
    assert torch.ones(2, device="cuda").new_empty(100, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_small_m_product_is_that_of_the_rounded_weight(case: Case) -> None:
    weight, packed = case.weight("cuda"), tensors(case.packed("cuda"))
    for m in (*range(1, 9), 16, 32, 48, 64):
        x = case.rows(m, "cuda")
        assert_rounded_weight(int4_small_m(x, *packed, 1, "")[0], x, weight, SLACK)
        parts = int4_small_m(x, *packed, splits_of(case), "")
        assert_rounded_weight(parts.float().sum(0).bfloat16(), x, weight, 2 * SLACK)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    packed, splits = tensors(case.packed("cuda")), splits_of(case)
    x = case.rows(8, "cuda")
    together = int4_small_m(x, *packed, splits, "")
    assert torch.equal(int4_small_m(x, *packed, splits, ""), together)
    for m in range(1, 8):
        assert torch.equal(int4_small_m(x[:, :m], *packed, splits, ""), together[:, :, :m])
    for row in range(8):
        alone = int4_small_m(x[:, row : row + 1], *packed, splits, "")
        assert torch.equal(alone, together[:, :, row : row + 1])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_the_tile_size(case: Case) -> None:
    """A drafter's `draft_decode` is compiled once, for rows of rounds and of prompts."""
    packed, splits = tensors(case.packed("cuda")), splits_of(case)
    x = case.rows(512, "cuda")
    together = int4_small_m(x, *packed, splits, "")
    for rows in (9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80, 81, 96, 97, 128, 256):
        assert torch.equal(int4_small_m(x[:, :rows], *packed, splits, ""), together[:, :, :rows])
    for first in range(0, 512, 8):
        tile = slice(first, first + 8)
        assert torch.equal(int4_small_m(x[:, tile], *packed, splits, ""), together[:, :, tile])
    for row in (0, 7, 8, 200, 511):
        alone = int4_small_m(x[:, row : row + 1], *packed, splits, "")
        assert torch.equal(alone, together[:, :, row : row + 1])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("m", [9, 100, 512])
def test_the_large_m_product_is_that_of_the_rounded_weight(case: Case, m: int) -> None:
    x = case.rows(m, "cuda")
    output = int4_large_m(x, *tensors(case.packed("cuda")), "")
    assert_rounded_weight(output, x, case.weight("cuda"), SLACK)


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("case", [Case(43008, 5376, 32), Case(1008, 512, 128)], ids=str)
def test_gated_products_match_float64(case: Case, activation: str) -> None:
    packed, x = tensors(case.packed("cuda")), case.rows(20, "cuda") / case.k**0.5 / 8
    expected = float64_gated(x, case.weight("cuda"), activation)
    few = int4_small_m(x, *packed, 1, activation)[0]
    for output in (few, int4_large_m(x, *packed, activation)):
        assert (output.double() - expected).norm() < 5e-3 * expected.norm()
    for row in range(20):
        alone = int4_small_m(x[:, row : row + 1], *packed, 1, activation)[0]
        assert torch.equal(alone, few[:, row : row + 1])


@pytest.mark.parametrize("group", [32, 128])
def test_the_bits_of_rows_of_any_magnitude_do_not_depend_on_the_tile_size(group: int) -> None:
    """Products that cancel, and rows 1e30 apart: tensor cores add in one way at every width."""
    case = Case(4096, 2048, group)
    packed, x = tensors(case.packed("cuda")), case.rows(64, "cuda").float()
    x[:, 16:32, ::2] *= 2.0**12
    x[:, 32:40] *= 1e20
    x[:, 40:48] *= 1e-20
    x = x.bfloat16()
    alone = [int4_small_m(x[:, row : row + 1], *packed, 3, "") for row in range(64)]
    for rows in (16, 32, 48, 64):
        together = int4_small_m(x[:, :rows], *packed, 3, "")
        assert torch.equal(together, torch.cat(alone[:rows], dim=2))


def test_the_error_of_fractional_zero_points_is_that_of_dequantising() -> None:
    case = Case(512, 4096, 32)
    weight = case.weight("cuda", integer_zeros=False)
    x = case.rows(8, "cuda")
    exact, _ = float64_product(x, weight)
    error = (int4_small_m(x, *tensors(pack(*weight)), 1, "")[0] - exact).square().mean()
    assert error <= 1.1 * (int4_linear_reference(x, *weight) - exact).square().mean()


def test_a_strided_input_gives_the_same_product() -> None:
    case = Case(256, 512, 32)
    packed = tensors(case.packed("cuda"))
    x = case.rows(8, "cuda")
    strided = torch.stack((x, x), dim=-1)[..., 0]
    assert not strided.is_contiguous()
    assert torch.equal(int4_small_m(strided, *packed, 1, ""), int4_small_m(x, *packed, 1, ""))
    assert torch.equal(int4_large_m(strided, *packed, ""), int4_large_m(x, *packed, ""))
