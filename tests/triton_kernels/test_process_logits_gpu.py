"""Logits processing on a GPU, bit for bit against the processors on the CPU."""

import pytest
import torch

from support.kernels.process_cases import CASES, Case
from support.kernels.threshold_cases import edges, hard_samplings, processed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [
    Case(32, 262_144),
    Case(8, 262_144, levels=3),
    Case(8, 49_152, drafts=15),
    Case(40, 262_144, masked=True),
]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_the_kernels_have_the_bits_of_the_cpu_processors(case: Case) -> None:
    assert torch.equal(case.processed("cuda").cpu(), case.processed())


@pytest.mark.parametrize("vocab", [5000, 262_144])
@pytest.mark.parametrize("name", edges(100))
def test_thresholds_of_edge_cases_equal_those_of_the_cpu_processors(name: str, vocab: int) -> None:
    samplings = hard_samplings(vocab)
    logits = edges(vocab)[name].repeat(len(samplings), 1)
    on_gpu = processed(logits, samplings, "cuda").cpu()
    assert torch.equal(on_gpu, processed(logits, samplings))


def test_the_order_of_blocks_does_not_change_the_result() -> None:
    """Sums and candidates come from many blocks at once."""
    samplings = 3 * hard_samplings(262_144)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(samplings), 262_144, generator=generator).cuda() * 3
    first = processed(logits, samplings, "cuda")
    assert all(torch.equal(processed(logits, samplings, "cuda"), first) for _ in range(30))
