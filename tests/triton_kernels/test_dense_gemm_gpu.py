"""The dense kernel on a GPU, at real shapes: against float64, and row by row."""

import pytest
import torch

from eagle_aot.triton_kernels.dense_gemm.op import dense_small_m
from eagle_aot.triton_kernels.dense_gemm.tiling import choose_splits
from support.kernels.dense_cases import assert_product, factors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES = [(32000, 5376), (5376, 21504), (4096, 10752), (333, 1120), (64, 72)]


@pytest.mark.parametrize(("features", "columns"), SHAPES)
def test_parts_add_up_to_the_product(features: int, columns: int) -> None:
    x, weight = factors(64, features, columns, "cuda")
    for rows in (1, 8, 16, 33, 64):
        for splits in (1, choose_splits(features, columns, 132)):
            few = x[:, :rows]
            assert_product(dense_small_m(few, weight, splits), few, weight)


@pytest.mark.parametrize(("features", "columns"), SHAPES)
def test_a_rows_bits_do_not_depend_on_the_tile_size(features: int, columns: int) -> None:
    """Rows 1e40 apart among them: tensor cores add in one way at every width."""
    x, weight = factors(200, features, columns, "cuda")
    x[:, 16:32, ::2] *= 2.0**12
    x[:, 32:40] *= 1e20
    x[:, 40:48] *= 1e-20
    splits = choose_splits(features, columns, 132)
    together = dense_small_m(x, weight, splits)
    for rows in (7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 128, 129):
        assert torch.equal(dense_small_m(x[:, :rows], weight, splits), together[:, :, :rows])
    for row in range(64):
        alone = dense_small_m(x[:, row : row + 1], weight, splits)
        assert torch.equal(alone, together[:, :, row : row + 1])
