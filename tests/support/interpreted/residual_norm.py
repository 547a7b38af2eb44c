"""The residual norm in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from collections.abc import Iterator

import pytest
import torch

from eagle_aot.triton_kernels.residual_norm import kernel, residual_norm_reference
from support.interpreted.as_a_gpu import launched_as_on_a_gpu
from support.kernels.residual_cases import CASES, Case, assert_close, assert_rounded_alike


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from launched_as_on_a_gpu(monkeypatch, kernel)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_sum_and_its_norms(case: Case) -> None:
    arguments = case.arguments()
    assert_close(kernel.launch(*arguments), arguments, 2e-2)
    reference = residual_norm_reference(*arguments)
    assert_rounded_alike(kernel.launch(*arguments), reference, most=0.02)
    wide = case.arguments(dtype=torch.float32)
    assert_close(kernel.launch(*wide), wide, 1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    parts, stream, *rest = case.arguments()
    together = kernel.launch(parts, stream, *rest)
    for row in range(case.rows):
        one = slice(row, row + 1)
        alone = kernel.launch(parts[:, :, one], stream[:, one], *rest)
        for a, b in zip(alone, together, strict=True):
            assert torch.equal(a, b[:, one])
