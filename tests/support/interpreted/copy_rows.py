"""Copied rows in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.copy_rows import kernel
from support.kernels.copy_cases import CASES, arguments, copied


@pytest.mark.parametrize(("kv_heads", "slots", "head_dim", "rows"), CASES)
def test_the_kernel_copies_sources_to_targets_and_changes_nothing_else(
    kv_heads: int, slots: int, head_dim: int, rows: int
) -> None:
    k, v, sources, targets = arguments(kv_heads, slots, head_dim, rows, "cpu")
    expected = copied(k, sources, targets), copied(v, sources, targets)
    kernel.launch(k, v, sources, targets)
    assert torch.equal(k, expected[0]) and torch.equal(v, expected[1])
