"""Norms, rotation and storing without a GPU: reference, operator, interpreted kernel."""

import pytest
import torch

from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store, norm_rope_store_reference
from support.interpreted import run_interpreted
from support.kernels.norm_rope_cases import CASES, Case, assert_close, copied

OPERATOR = torch.ops.eagle_aot.norm_rope_store.default


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_normalises_rotates_and_stores(case: Case) -> None:
    before = case.arguments()
    after = copied(before)
    assert_close(case, norm_rope_store_reference(*after), after, before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operator_is_the_reference(case: Case) -> None:
    ours, theirs = case.arguments(), case.arguments()
    assert torch.equal(norm_rope_store(*ours), norm_rope_store_reference(*theirs))
    for a, b in zip(ours[5:7], theirs[5:7], strict=True):
        assert torch.equal(a, b)
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(OPERATOR, tuple(case.arguments()), test_utils=tests)


# Triton 3.6 does not interpret with numpy 2.4 and later, which a GPU machine may have.
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests run the compiled kernel")
def test_interpreted_it_computes_row_by_row() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    run_interpreted("norm_rope_store")
