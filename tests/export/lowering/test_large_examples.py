"""Arguments that Inductor makes up to try kernels on."""

import pytest
import torch
from torch import Tensor
from torch._inductor.select_algorithm import AlgorithmSelectorCache

from eagle_aot.export.lowering import large_examples
from eagle_aot.export.lowering.large_examples import large_examples_in_one_place


def example(*size: int, dtype: torch.dtype = torch.bfloat16, offset: int = 0) -> Tensor:
    """As Inductor's code for tuning asks for it."""
    stride = torch.empty(size, device="meta").stride()
    form = list(size), list(stride), "cpu", dtype, offset, list(size)
    return AlgorithmSelectorCache.generate_example_value(*form)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_examples, "LARGE", 1 << 12)


def test_large_ones_have_one_place() -> None:
    with large_examples_in_one_place():
        table, k, v = example(64, 64), example(4, 32, 16), example(2048, offset=1)
        words = example(8, 128, dtype=torch.int32)
    assert len({one.data_ptr() for one in (table, k, v, words)}) == 1
    assert table.untyped_storage().nbytes() == 2 * 64 * 64, "the largest's"
    assert k.shape == (4, 32, 16) and k.stride() == (512, 16, 1) and k.dtype == torch.bfloat16
    assert words.shape == (8, 128) and words.dtype == torch.int32
    assert not any(one.any() for one in (table, k, v, words))


def test_small_ones_have_their_own() -> None:
    wanted = example(2, 3)
    with large_examples_in_one_place():
        first, second, empty = example(2, 3), example(2, 3), example(0, 1 << 20)
    assert first.data_ptr() != second.data_ptr() and first.any() and second.any()
    assert first.shape == wanted.shape and first.stride() == wanted.stride()
    assert empty.shape == (0, 1 << 20)


def test_a_larger_one_takes_the_place() -> None:
    with large_examples_in_one_place():
        small = example(4096)
        large = example(8192)
        again = example(4096)
    assert again.data_ptr() == large.data_ptr() != small.data_ptr()
    assert example(4096).any(), "as Inductor makes it"
