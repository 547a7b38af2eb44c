"""Argmax with and without Gumbel noise on a GPU, bit for bit against the reference on the CPU."""

import pytest
import torch

from eagle_aot.runtime_runner.sampling.sampler import greedy
from eagle_aot.triton_kernels.device import launches_kernels
from eagle_aot.triton_kernels.gumbel_argmax import gumbel_argmax, perturbed
from eagle_aot.triton_kernels.gumbel_argmax.reference import perturbed_reference
from support.kernels.gumbel_cases import CASES, Case, check_argmax

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [Case(64, 262_144), Case(8, 262_144, mapped=True), Case(5, 49_152, levels=3)]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_the_kernel_has_the_bits_of_the_reference(case: Case) -> None:
    expected = perturbed_reference(*case.arguments())
    assert torch.equal(perturbed(*case.arguments("cuda")).cpu(), expected)
    assert torch.equal(gumbel_argmax(*case.arguments("cuda")).cpu(), expected.argmax(dim=1))


@pytest.mark.parametrize("vocab", [1, 5, 4097, 49_152, 151_936, 262_144])
def test_the_first_of_the_largest_is_chosen_without_noise(vocab: int) -> None:
    assert launches_kernels()
    check_argmax(lambda logits: greedy(logits.view(3, 2, vocab)).view(-1), vocab, "cuda")


def test_the_reference_has_the_same_bits_on_a_gpu() -> None:
    case = Case(3, 10_007)
    assert torch.equal(
        perturbed_reference(*case.arguments("cuda")).cpu(), perturbed_reference(*case.arguments())
    )
