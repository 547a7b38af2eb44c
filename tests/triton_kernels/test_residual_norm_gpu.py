"""The residual norm on a GPU, at real widths."""

import pytest
import torch

from eagle_aot.triton_kernels.residual_norm import residual_norm
from support.kernels.residual_cases import CASES, Case, assert_close, select_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [Case(6, 8, 5376, post=True, scaled=True), Case(1, 512, 8192, post=False, scaled=False)]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_the_kernel_matches_float64(case: Case) -> None:
    arguments = case.arguments("cuda")
    assert_close(residual_norm(*arguments), arguments, 2e-2)
    wide = case.arguments("cuda", torch.float32)
    assert_close(residual_norm(*wide), wide, 1e-5)


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    arguments = case.arguments("cuda")
    together = residual_norm(*arguments)
    for count in (1, 2, 5):
        for first in range(min(case.rows, 8) - count + 1):
            rows = slice(first, first + count)
            few = residual_norm(*select_rows(arguments, rows))
            for a, b in zip(few, together, strict=True):
                assert torch.equal(a, b[:, rows])
