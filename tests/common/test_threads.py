"""torch's number of threads within a block and after it."""

from collections.abc import Iterator

import pytest
import torch

from eagle_aot.common.threads import torch_threads


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_is_restored_after_the_block() -> None:
    with torch_threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3


def test_the_number_of_threads_is_restored_after_an_error() -> None:
    with pytest.raises(KeyError), torch_threads(1):
        raise KeyError
    assert torch.get_num_threads() == 3
