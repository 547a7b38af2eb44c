"""Processing logits on a GPU, against the twin on the CPU bit for bit."""

import pytest
import torch

from support.kernels.process_cases import CASES, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [Case(32, 262_144), Case(8, 262_144, levels=3), Case(8, 49_152, drafts=15)]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_it_has_the_bits_of_its_twin(case: Case) -> None:
    assert torch.equal(case.processed("cuda").cpu(), case.processed())
