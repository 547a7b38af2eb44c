"""The choice under noise in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.gumbel_argmax import kernel
from eagle_aot.triton_kernels.gumbel_argmax.reference import perturbed_reference
from support.kernels.gumbel_cases import CASES, Case


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_has_the_bits_of_the_reference(case: Case, dtype: torch.dtype) -> None:
    arguments = case.arguments(dtype=dtype)
    expected = perturbed_reference(*arguments)
    assert torch.equal(kernel.launch_perturbed(*arguments), expected)
    assert torch.equal(kernel.launch_argmax(*arguments), expected.argmax(dim=1))


def test_every_table_exponent_has_the_bits_of_the_reference() -> None:
    """Tokens of a whole block under 64 keys: 2**18 draws reach distances down to 2**14."""
    rows = 1 << 6
    keys = torch.randint(-(2**31), 2**31, (rows, 2), generator=torch.manual_seed(1)).int()
    arguments = torch.zeros(rows, kernel.BLOCK), torch.ones(rows), keys, None
    found, expected = kernel.launch_perturbed(*arguments), perturbed_reference(*arguments)
    assert torch.equal(found, expected)
    assert expected.max() > 10 and expected.min() < -2.3
