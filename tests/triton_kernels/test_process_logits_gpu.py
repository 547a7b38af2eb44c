"""Processing logits on a GPU, against the twin on the CPU bit for bit."""

import pytest
import torch

from support.kernels.process_cases import CASES, Case
from support.kernels.threshold_cases import askers, edges, processed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [Case(32, 262_144), Case(8, 262_144, levels=3), Case(8, 49_152, drafts=15)]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_it_has_the_bits_of_its_twin(case: Case) -> None:
    assert torch.equal(case.processed("cuda").cpu(), case.processed())


@pytest.mark.parametrize("vocab", [5000, 262_144])
@pytest.mark.parametrize("name", edges(100))
def test_a_threshold_is_the_twins_wherever_it_lies(name: str, vocab: int) -> None:
    samplings = askers(vocab)
    logits = edges(vocab)[name].repeat(len(samplings), 1)
    found = processed(logits, samplings, "cuda").cpu()
    assert torch.equal(found, processed(logits, samplings))


def test_it_is_the_same_whichever_block_comes_first() -> None:
    """Sums and candidates come from many blocks at once."""
    samplings = 3 * askers(262_144)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(samplings), 262_144, generator=generator).cuda() * 3
    first = processed(logits, samplings, "cuda")
    assert all(torch.equal(processed(logits, samplings, "cuda"), first) for _ in range(30))
