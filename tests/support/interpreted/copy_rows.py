"""Copied rows in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from collections.abc import Iterator

import pytest
import torch

from eagle_aot.triton_kernels.copy_rows import kernel
from support.interpreted.as_a_gpu import launched_as_on_a_gpu
from support.kernels.copy_cases import CASES, copied, copying


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from launched_as_on_a_gpu(monkeypatch, kernel)


@pytest.mark.parametrize(("kv_heads", "slots", "head_dim", "rows"), CASES)
def test_the_targets_hold_the_sources_and_nothing_else_changes(
    kv_heads: int, slots: int, head_dim: int, rows: int
) -> None:
    k, v, *places = copying(kv_heads, slots, head_dim, rows, "cpu")
    expected = copied(k, *places), copied(v, *places)
    kernel.launch(k, v, *places)
    assert torch.equal(k, expected[0]) and torch.equal(v, expected[1])
