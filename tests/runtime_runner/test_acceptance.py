import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner import acceptance


def count_accepted(drafts: list[int], greedy: list[int]) -> int:
    """Through tensors, as a round calls it."""
    found = acceptance.count_accepted(
        torch.tensor([drafts], dtype=torch.int64), torch.tensor([greedy])
    )
    assert (found.shape, found.dtype) == ((1,), torch.int64)
    return int(found)


@pytest.mark.parametrize(
    ("drafts", "greedy", "accepted"),
    [
        ([], [7], 0),
        ([31, 32, 33], [31, 40, 5, 6], 1),
        ([31, 32, 33], [30, 32, 33, 6], 0),
        ([31, 32, 33], [31, 32, 33, 6], 3),
        ([31, 32, 33], [31, 32, 9, 6], 2),
    ],
)
def test_leading_matches_count(drafts: list[int], greedy: list[int], accepted: int) -> None:
    assert count_accepted(drafts, greedy) == accepted


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2))), st.integers(0, 2))
def test_the_accepted_prefix_is_the_longest_common_one(
    pairs: list[tuple[int, int]], bonus: int
) -> None:
    drafts, greedy = [d for d, _ in pairs], [g for _, g in pairs] + [bonus]
    count = count_accepted(drafts, greedy)
    assert drafts[:count] == greedy[:count]
    assert count == len(drafts) or drafts[count] != greedy[count]
