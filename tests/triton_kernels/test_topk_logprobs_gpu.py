"""The likeliest of a vocabulary on a GPU, against a sort on the CPU."""

import pytest
import torch

from eagle_aot.triton_kernels.device import launches_kernels
from eagle_aot.triton_kernels.topk_logprobs import topk_logprobs
from support.kernels.topk_cases import CASES, Case, check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [Case(64, 32_000, 8), Case(8, 262_144, 16), Case(5, 49_152, 8, levels=3)]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_the_topk_kernels_match_a_sort(case: Case) -> None:
    assert launches_kernels()
    check(case, *topk_logprobs(case.logits().cuda(), case.k))


def test_the_result_keeps_leading_dimensions() -> None:
    logits = Case(6, 3000, 4).logits().cuda()
    found = topk_logprobs(logits.view(2, 3, -1), 4)
    for x, flat in zip(found, topk_logprobs(logits, 4), strict=True):
        assert torch.equal(x, flat.view(2, 3, 4))
