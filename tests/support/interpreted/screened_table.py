"""The screened output table in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.dense_gemm import kernel as dense_gemm
from eagle_aot.triton_kernels.screened_table import kernel
from eagle_aot.triton_kernels.screened_table.packing import ScreenCopy, screen_copy
from support.kernels.screen_cases import assert_same_largest, exact_tiles, rows_near, table

ALL, LARGEST = torch.tensor([0]), torch.tensor([1])


@pytest.fixture(scope="module")
def of_gemma() -> tuple[Tensor, ScreenCopy]:
    return table(640, 320)  # columns of two and a half groups


@pytest.mark.parametrize("cosine", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_largest_logits_are_exact(
    of_gemma: tuple[Tensor, ScreenCopy], rows: int, cosine: float
) -> None:
    weight, copy = of_gemma
    x = rows_near(weight, rows, cosine)
    exact = dense_gemm.launch(x, weight, 1)[0]
    screened = kernel.launch(x, weight, copy, LARGEST)
    assert_same_largest(screened, exact)
    if cosine > 0.5:
        assert exact_tiles(screened, exact) <= rows < 10
    assert torch.equal(kernel.launch(x, weight, copy, ALL), exact)


def test_equal_rows_of_a_table_are_all_exact() -> None:
    weight, _ = table(256, 128)
    weight[200] = weight[30]
    x = (weight[30:31] * 300).unsqueeze(0)
    exact = dense_gemm.launch(x, weight, 1)[0]
    assert int((exact == exact.amax()).sum()) == 2
    assert_same_largest(kernel.launch(x, weight, screen_copy(weight), LARGEST), exact)


def test_more_rows_than_a_tile_are_the_dense_product(
    of_gemma: tuple[Tensor, ScreenCopy],
) -> None:
    weight, copy = of_gemma
    for rows in (9, 17):
        x = rows_near(weight, rows, 0.9)
        exact = dense_gemm.launch(x, weight, 1)[0]
        assert torch.equal(kernel.launch(x, weight, copy, LARGEST), exact)


def test_tokens_without_a_bound_are_always_exact(of_gemma: tuple[Tensor, ScreenCopy]) -> None:
    """The largest error: what is never chosen raises no lower bound."""
    weight, copy = of_gemma
    x = rows_near(weight, 1, 0.9)
    exact = dense_gemm.launch(x, weight, 1)[0]
    winner = int(exact.argmax())
    errors = copy.errors.clone()
    errors[winner] = torch.finfo(torch.float32).max
    unbounded = ScreenCopy(copy.values, copy.scales, errors, copy.norms)
    screened = kernel.launch(x, weight, unbounded, LARGEST)
    exact[..., winner] = screened[..., winner] = -torch.inf
    assert_same_largest(screened, exact)


def test_a_row_of_zeros_has_equal_logits(of_gemma: tuple[Tensor, ScreenCopy]) -> None:
    weight, copy = of_gemma
    screened = kernel.launch(torch.zeros(1, 2, 320).bfloat16(), weight, copy, LARGEST)
    assert torch.equal(screened, torch.zeros_like(screened))
