"""torch's threads within a block and behind it."""

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


def test_so_many_within_and_as_many_as_before_behind() -> None:
    with torch_threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3


def test_as_many_as_before_behind_an_error() -> None:
    with pytest.raises(KeyError), torch_threads(1):
        raise KeyError
    assert torch.get_num_threads() == 3
