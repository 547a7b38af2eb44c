"""The likeliest of a vocabulary in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest

from eagle_aot.triton_kernels.topk_logprobs import kernel
from support.kernels.topk_cases import Case, check

CASES = [Case(1, 5, 4), Case(2, 32, 1), Case(2, 150, 3), Case(2, 129, 8, levels=4)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_topk_kernels_match_a_sort(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 32)
    check(case, *kernel.launch(case.logits(), case.k))
