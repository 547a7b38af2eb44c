"""Norms, rotation and storing without a GPU: reference and operator."""

import pytest
import torch

from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store, norm_rope_store_reference
from support.kernels.norm_rope_cases import CASES, Case, assert_close, copied

OPERATOR = torch.ops.eagle_aot.norm_rope_store.default


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_matches_float64(case: Case) -> None:
    before = case.arguments()
    after = copied(before)
    assert_close(case, norm_rope_store_reference(*after), after, before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_operator_is_the_reference(case: Case) -> None:
    ours, theirs = case.arguments(), case.arguments()
    assert torch.equal(norm_rope_store(*ours), norm_rope_store_reference(*theirs))
    for a, b in zip(ours[5:7], theirs[5:7], strict=True):
        assert torch.equal(a, b)
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(OPERATOR, tuple(case.arguments()), test_utils=tests)
