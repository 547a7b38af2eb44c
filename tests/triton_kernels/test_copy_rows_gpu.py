"""Copied rows on a GPU, at real widths."""

import pytest
import torch

from eagle_aot.triton_kernels.copy_rows import copy_rows
from support.kernels.copy_cases import CASES, arguments, copied

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize(
    ("kv_heads", "slots", "head_dim", "rows"), [*CASES, (16, 8 * 2560, 256, 1536)]
)
def test_the_kernel_copies_sources_to_targets_and_changes_nothing_else(
    kv_heads: int, slots: int, head_dim: int, rows: int
) -> None:
    k, v, sources, targets = arguments(kv_heads, slots, head_dim, rows, "cuda")
    expected = copied(k, sources, targets), copied(v, sources, targets)
    copy_rows(k, v, sources, targets)
    assert torch.equal(k, expected[0]) and torch.equal(v, expected[1])
