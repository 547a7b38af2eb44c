"""The dense kernel in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.dense_gemm import kernel
from support.kernels.dense_cases import assert_product, factors

SHAPES = [(70, 320), (256, 1152), (5, 136)]


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize(("features", "columns"), SHAPES)
def test_parts_add_up_to_the_product(features: int, columns: int, splits: int) -> None:
    x, weight = factors(20, features, columns)
    parts = kernel.launch(x, weight, splits)
    assert parts.shape == (splits, 1, 20, features)
    assert parts.dtype == (torch.bfloat16 if splits == 1 else torch.float32)
    assert_product(parts, x, weight)


@pytest.mark.parametrize("splits", [1, 2])
def test_a_rows_bits_do_not_depend_on_the_tile_size(splits: int) -> None:
    x, weight = factors(130, 70, 320)
    together = kernel.launch(x, weight, splits)
    for rows in (1, 7, 8, 9, 16, 17, 64, 65, 129):
        assert torch.equal(kernel.launch(x[:, :rows], weight, splits), together[:, :, :rows])
    for row in (8, 63, 64, 129):
        alone = kernel.launch(x[:, row : row + 1], weight, splits)
        assert torch.equal(alone, together[:, :, row : row + 1])


def test_a_batch_of_rows_equals_its_rows() -> None:
    x, weight = factors(12, 70, 320)
    apart = kernel.launch(x.view(3, 4, 320), weight, 2)
    assert torch.equal(apart.view(2, 1, 12, 70), kernel.launch(x, weight, 2))
