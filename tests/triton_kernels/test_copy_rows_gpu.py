"""Copied rows on a GPU, at real widths."""

import pytest
import torch

from eagle_aot.triton_kernels.copy_rows import copy_rows
from support.kernels.copy_cases import CASES, copied, copying

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize(
    ("kv_heads", "slots", "head_dim", "rows"), [*CASES, (16, 8 * 2560, 256, 1536)]
)
def test_the_targets_hold_the_sources_and_nothing_else_changes(
    kv_heads: int, slots: int, head_dim: int, rows: int
) -> None:
    k, v, *places = copying(kv_heads, slots, head_dim, rows, "cuda")
    expected = copied(k, *places), copied(v, *places)
    copy_rows(k, v, *places)
    assert torch.equal(k, expected[0]) and torch.equal(v, expected[1])
