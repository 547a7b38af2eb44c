"""The operators around a delta net's rule on a CPU."""

import pytest
import torch

from eagle_aot.triton_kernels.delta_net import delta_net_inputs, delta_net_output
from support.kernels.delta_net_cases import (
    CASES,
    Case,
    assert_close,
    copied,
    expected,
    expected_output,
    output_arguments,
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inputs_and_outputs_match_float64(case: Case) -> None:
    before = case.arguments()
    after = copied(before)
    assert_close((*delta_net_inputs(*after), *after[4:6]), expected(case, before))
    arguments = output_arguments(case)
    wanted = expected_output(*arguments)
    assert (delta_net_output(*arguments) - wanted).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize("name", ["schema", "faketensor"])
@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=str)
def test_the_operators_are_what_they_declare(case: Case, name: str) -> None:
    torch.library.opcheck(delta_net_inputs, tuple(case.arguments()), test_utils=f"test_{name}")
    torch.library.opcheck(delta_net_output, output_arguments(case), test_utils=f"test_{name}")
