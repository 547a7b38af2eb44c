"""The delta rule's kernels in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.artifact.methods import STATE_BLOCK
from eagle_aot.triton_kernels.delta_rule.blocks import BLOCK, launch_prompt
from eagle_aot.triton_kernels.delta_rule.kernel import launch_step
from support.kernels.delta_cases import Sizes, check_one_text

CASES = [Sizes(4, 2, 16, 64), Sizes(2, 2, 32, 16)]


@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_all_ways_through_a_text_give_the_same_bits(sizes: Sizes) -> None:
    assert STATE_BLOCK % BLOCK == 0
    check_one_text(sizes, (launch_prompt, launch_step), torch.device("cpu"))
