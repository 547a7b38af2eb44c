"""Greedy choice in blocks against one argmax."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from eagle_aot.runtime_runner.sampling.sampler import greedy

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(
    rows=st.integers(1, 8),
    vocab=st.sampled_from([1, 2, 97, 256, 1000, 1187 * 4, 4096]),
    values=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_the_first_of_the_largest_is_chosen(rows: int, vocab: int, values: int, seed: int) -> None:
    """Few different values: most rows hold their largest many times."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, values, (1, rows, vocab), generator=generator).float()
    expected = [row.index(max(row)) for row in logits[0].tolist()]
    assert greedy(logits).tolist() == [expected]


def test_the_only_finite_value_wins() -> None:
    logits = torch.full((1, 1, 1000), -torch.inf)
    logits[0, 0, 777] = -1e30
    assert greedy(logits).tolist() == [[777]]


def test_a_cpu_searches_with_one_thread_and_leaves_torch_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        logits = torch.zeros(1, 2, 1 << 16)
        with ThreadCounter() as counter:
            greedy(logits)
        assert counter.counts == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class ThreadCounter(TorchDispatchMode):
    """Records how many threads torch had at each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.add(torch.get_num_threads())
        return func(*args, **(kwargs or {}))
