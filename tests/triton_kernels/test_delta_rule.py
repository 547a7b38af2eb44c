"""The delta rule's operators on a CPU."""

import pytest
import torch

from eagle_aot.triton_kernels.delta_rule import delta_rule_prompt, delta_rule_step
from support.kernels.delta_cases import Sizes, Texts, check_one_text

CPU = torch.device("cpu")
SIZES = Sizes(4, 2, 16, 32)


def test_all_ways_through_a_text_give_the_same_bits() -> None:
    check_one_text(SIZES, (delta_rule_prompt, delta_rule_step), CPU)


@pytest.mark.parametrize("name", ["schema", "faketensor"])
def test_the_operators_are_what_they_declare(name: str) -> None:
    texts = Texts(SIZES, (delta_rule_prompt, delta_rule_step), CPU)
    texts.state.zero_()
    inputs = torch.tensor([1]), torch.tensor([3]), texts.terms, texts.queries
    torch.library.opcheck(delta_rule_prompt, (texts.state, *inputs), test_utils=f"test_{name}")
