"""What followed the last tokens of texts on a GPU, against PyTorch's operators on the CPU."""

import pytest
import torch

from eagle_aot.runtime_runner.drafters.ngram import continuations
from eagle_aot.triton_kernels.device import launches_kernels
from support.kernels.ngram_cases import LENGTHS, check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_the_kernels_find_what_followed() -> None:
    assert launches_kernels()
    check(continuations, LENGTHS, "cuda")
    check(continuations, [4095, 4096, 4097, 32_000], "cuda")
