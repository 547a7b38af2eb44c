"""The screened output table on a GPU: its largest logits are those of the dense product."""

import pytest
import torch

from eagle_aot.triton_kernels.dense_gemm.op import dense_small_m
from eagle_aot.triton_kernels.screened_table.op import screened_logits
from support.kernels.screen_cases import assert_same_largest, exact_tiles, rows_near, table

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("as_exported"),
]


@pytest.mark.parametrize(
    ("features", "columns"),
    [(65536, 5376), (65552, 2048), (49152, 576), (65552, 1120), (333, 1120)],
)
def test_the_largest_logits_are_those_of_the_dense_product(features: int, columns: int) -> None:
    weight, copy = table(features, columns, "cuda")
    tensors = copy.values, copy.scales, copy.errors, copy.norms
    every, largest = (torch.tensor([n], device="cuda") for n in (0, 1))
    for rows in (1, 2, 5, 8, 9, 40):
        for cosine in (0.0, 0.1, 0.3, 0.9):
            x = rows_near(weight, rows, cosine)
            exact = dense_small_m(x, weight, 1)[0]
            screened = screened_logits(x, weight, *tensors, largest)
            assert_same_largest(screened, exact)
            assert torch.equal(screened_logits(x, weight, *tensors, every), exact)
            if cosine == 0.9 and rows <= 8 and features % 64 == 0:
                assert exact_tiles(screened, exact) <= rows
