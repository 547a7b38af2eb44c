"""Copied rows without a GPU: the operator, and its kernel interpreted."""

import pytest
import torch

from eagle_aot.triton_kernels.copy_rows import copy_rows
from support.interpreted import run_interpreted
from support.kernels.copy_cases import CASES, copied, copying


@pytest.mark.parametrize(("kv_heads", "slots", "head_dim", "rows"), CASES)
def test_the_operator_copies_in_place(kv_heads: int, slots: int, head_dim: int, rows: int) -> None:
    k, v, *places = copying(kv_heads, slots, head_dim, rows, "cpu")
    expected = copied(k, *places), copied(v, *places)
    copy_rows(k, v, *places)
    assert torch.equal(k, expected[0]) and torch.equal(v, expected[1])
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.eagle_aot.copy_rows.default, (k, v, *places), test_utils=tests)


# Triton 3.6 does not interpret with numpy 2.4 and later, which a GPU machine may have.
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests run the compiled kernel")
def test_interpreted_it_copies_in_place() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    run_interpreted("copy_rows")
