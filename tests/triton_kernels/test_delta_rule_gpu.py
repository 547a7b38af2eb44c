"""The delta rule's kernels on a GPU, at real shapes: every way through a text, bit for bit."""

import pytest
import torch

from eagle_aot.triton_kernels.delta_rule import delta_rule_prompt, delta_rule_step
from support.kernels.delta_cases import Sizes, check_one_text

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CASES = [Sizes(48, 16, 128, 128), Sizes(32, 16, 128, 128), Sizes(4, 2, 16, 64)]
"""Qwen3.5 27B, 9B and 4B, and a small one."""


@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_all_ways_through_a_text_give_the_same_bits(sizes: Sizes) -> None:
    check_one_text(sizes, (delta_rule_prompt, delta_rule_step), torch.device("cuda"))
