"""Copied rows without a GPU."""

import pytest
import torch

from eagle_aot.triton_kernels.copy_rows import copy_rows
from support.kernels.copy_cases import CASES, arguments, copied


@pytest.mark.parametrize(("kv_heads", "slots", "head_dim", "rows"), CASES)
def test_the_cpu_operator_copies_in_place(
    kv_heads: int, slots: int, head_dim: int, rows: int
) -> None:
    k, v, sources, targets = arguments(kv_heads, slots, head_dim, rows, "cpu")
    expected = copied(k, sources, targets), copied(v, sources, targets)
    copy_rows(k, v, sources, targets)
    assert torch.equal(k, expected[0]) and torch.equal(v, expected[1])
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.eagle_aot.copy_rows.default, (k, v, sources, targets), test_utils=tests
    )
