"""The residual norm in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.residual_norm import kernel, residual_norm_reference
from support.kernels.residual_cases import (
    CASES,
    Case,
    assert_close,
    assert_rounded_alike,
    select_rows,
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_matches_float64(case: Case) -> None:
    arguments = case.arguments()
    assert_close(kernel.launch(*arguments), arguments, 2e-2)
    reference = residual_norm_reference(*arguments)
    assert_rounded_alike(kernel.launch(*arguments), reference, share=0.02)
    wide = case.arguments(dtype=torch.float32)
    assert_close(kernel.launch(*wide), wide, 1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    arguments = case.arguments()
    together = kernel.launch(*arguments)
    for row in range(case.rows):
        rows = slice(row, row + 1)
        alone = kernel.launch(*select_rows(arguments, rows))
        for a, b in zip(alone, together, strict=True):
            assert torch.equal(a, b[:, rows])
