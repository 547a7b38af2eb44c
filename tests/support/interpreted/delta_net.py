"""A delta net around its rule in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.delta_net.kernel import launch_inputs, launch_output
from support.kernels.delta_net_cases import (
    CASES,
    Case,
    assert_close,
    copied,
    cut,
    expected,
    expected_output,
    output_arguments,
)


def launch(arguments: list[Any]) -> tuple[Tensor, Tensor]:
    """Launch the kernel with the operator's arguments."""
    parts, weight, bias, log, inputs, terms, slots, taps, exist, sources, targets, dim = arguments
    weights, buffers, moves = (weight, bias, log), (inputs, terms), (sources, targets)
    return launch_inputs(parts, weights, buffers, slots, (taps, exist), moves, dim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inputs_match_float64(case: Case) -> None:
    before = case.arguments()
    after = copied(before)
    assert_close((*launch(after), *after[4:6]), expected(case, before))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_later_rows_and_other_texts(case: Case) -> None:
    together = case.arguments()
    results = launch(together)
    for row in range(case.rows):
        fewer = case.row_alone(row)
        alone = cut(case.arguments(), fewer)
        for ours, whole in zip(launch(alone), results, strict=True):
            assert torch.equal(ours[row], whole[row])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_match_float64(case: Case) -> None:
    arguments = output_arguments(case)
    found, wanted = launch_output(*arguments), expected_output(*arguments)
    assert found.shape == wanted.shape and (found - wanted).norm() < 1e-3 * wanted.norm()
