"""The kernels around a delta net's rule on a GPU, at real shapes."""

import pytest
import torch

from eagle_aot.triton_kernels.delta_net import delta_net_inputs, delta_net_output
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

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [
    Case(2, 16, key_heads=16, heads=48, key_dim=128, value_dim=128, splits=2),  # Qwen3.5 27B
    Case(4, 1, key_heads=16, heads=32, key_dim=128, value_dim=128),  # and 4B
]
SHAPES = pytest.mark.parametrize("case", CASES + WIDE, ids=str)


@SHAPES
def test_inputs_and_outputs_match_float64(case: Case) -> None:
    before = case.arguments("cuda", torch.bfloat16)
    after = copied(before)
    found = *delta_net_inputs(*after), *after[4:6]
    on_host = [a.cpu() if isinstance(a, torch.Tensor) else a for a in before]
    assert_close(tuple(x.cpu() for x in found), expected(case, on_host))
    arguments = output_arguments(case, "cuda")
    wanted = expected_output(*arguments)
    assert (delta_net_output(*arguments) - wanted).norm() < 1e-2 * wanted.norm()


@SHAPES
def test_a_rows_bits_do_not_depend_on_later_rows_and_other_texts(case: Case) -> None:
    for _ in range(20):  # a race does not show every time
        results = delta_net_inputs(*case.arguments("cuda", torch.bfloat16))
        for row in (0, case.rows - 1):
            alone = cut(case.arguments("cuda", torch.bfloat16), case.row_alone(row))
            for ours, whole in zip(delta_net_inputs(*alone), results, strict=True):
                assert torch.equal(ours[row], whole[row])
