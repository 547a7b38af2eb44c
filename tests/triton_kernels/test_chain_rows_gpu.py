"""A round's work on chains on a GPU, against PyTorch's operators on the CPU."""

import pytest
import torch

from eagle_aot.triton_kernels.device import launches_kernels
from support.kernels.chain_cases import (
    ROWS,
    check_accept,
    check_advance,
    check_rows,
    results_of_a_round,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("rows", ROWS)
def test_the_kernels_do_what_pytorch_does(rows: int) -> None:
    from eagle_aot.triton_kernels import chain_rows

    check_rows(chain_rows, rows, "cuda")
    check_accept(chain_rows, rows, "cuda")
    check_advance(chain_rows, rows, "cuda")


@pytest.mark.parametrize("rows", ROWS)
def test_a_round_is_that_of_a_cpu(rows: int) -> None:
    assert launches_kernels()
    pairs = zip(results_of_a_round(rows, "cuda"), results_of_a_round(rows, "cpu"), strict=True)
    assert all(torch.equal(found, expected) for found, expected in pairs)
