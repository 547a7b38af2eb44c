"""The choice under noise in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.gumbel_argmax import kernel
from eagle_aot.triton_kernels.gumbel_argmax.reference import perturbed_reference
from support.kernels.gumbel_cases import CASES, Case, check_argmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_has_the_bits_of_the_reference(case: Case, dtype: torch.dtype) -> None:
    arguments = case.arguments(dtype=dtype)
    expected = perturbed_reference(*arguments)
    assert torch.equal(kernel.launch_perturbed(*arguments), expected)
    assert torch.equal(kernel.launch_argmax(*arguments), expected.argmax(dim=1))


@pytest.mark.parametrize("vocab", [1, 5, 1000, 4096, 4097, 10_007])
def test_the_first_of_the_largest_is_chosen_without_noise(vocab: int) -> None:
    check_argmax(kernel.launch_argmax, vocab)


def test_a_row_of_nan_has_a_column() -> None:
    """Of a vocabulary that fills no block."""
    assert 0 <= int(kernel.launch_argmax(torch.full((1, 1000), torch.nan))) < 1000


def test_every_table_exponent_has_the_bits_of_the_reference() -> None:
    """Tokens of a whole block under 64 keys: 2**18 draws reach distances down to 2**14."""
    rows = 1 << 6
    keys = torch.randint(-(2**31), 2**31, (rows, 2), generator=torch.manual_seed(1)).int()
    arguments = torch.zeros(rows, kernel.BLOCK), torch.ones(rows), keys, None
    found, expected = kernel.launch_perturbed(*arguments), perturbed_reference(*arguments)
    assert torch.equal(found, expected)
    assert expected.max() > 10 and expected.min() < -2.3
