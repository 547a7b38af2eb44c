"""The likeliest of a vocabulary without its kernel, as on a CPU or where none can be launched."""

import sys

import pytest
import torch

from eagle_aot.triton_kernels.device import launches_kernels
from eagle_aot.triton_kernels.topk_logprobs import topk_logprobs, topk_logprobs_reference
from support.kernels.topk_cases import CASES, Case, check


@pytest.mark.parametrize("case", [case for case in CASES if not case.levels], ids=str)
def test_the_cpu_operator_matches_a_sort(case: Case) -> None:
    check(case, *topk_logprobs(case.logits(), case.k))
    scores, columns = topk_logprobs_reference(case.logits().unsqueeze(1), case.k)
    assert scores.shape == columns.shape == (case.rows, 1, case.k)
    check(case, scores.squeeze(1), columns.squeeze(1))


def test_stock_operators_are_used_if_kernels_cannot_be_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime", None)  # importing it raises ImportError
    launches_kernels.cache_clear()
    try:
        assert not launches_kernels()
        found = topk_logprobs(torch.zeros(2, 3, 5, device="meta"), 2)
        assert [x.shape for x in found] == [(2, 3, 2), (2, 3, 2)]
    finally:
        launches_kernels.cache_clear()
