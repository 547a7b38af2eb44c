"""Thresholds against a plain loop, and weights against softmax."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.sampling.thresholds import order_of, threshold, weights_of

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(
    vocab=st.sampled_from([1, 2, 50, 1500, 3000]), levels=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 9), share=st.floats(0.0, 1.0),
)  # fmt: skip
def test_threshold_is_the_largest_that_reaches_the_goal(
    vocab: int, levels: int, seed: int, share: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2, vocab, generator=generator)
    if levels:
        values = torch.randint(-levels, levels, (2, vocab), generator=generator).float()
    weights = torch.randint(0, 5, (2, vocab), generator=generator)
    weights[:, 0] = 1
    goal = (weights.sum(dim=1) * share).long().clamp(min=1)
    order = order_of(values)
    found = threshold(order, weights, goal, torch.tensor([True, False]))
    pairs = zip(order[0].tolist(), weights[0].tolist(), strict=True)
    total, expected = 0, None
    for value, weight in sorted(pairs, reverse=True):
        total += weight
        if total >= goal[0] and expected is None:
            expected = value
    assert found.tolist() == [[expected], [-(2**31)]]


def test_order_is_that_of_the_numbers() -> None:
    values = [-torch.inf, -3e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 1.5, torch.inf]
    order = order_of(torch.tensor(values)).tolist()
    assert order == sorted(order) and len(set(order)) == len(values) - 1


def test_weights_are_probabilities() -> None:
    values = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)) * 6
    values[:, ::7] = -torch.inf
    weights = weights_of(values).double()
    exact = values.double().softmax(dim=-1)
    assert (weights[:, ::7] == 0).all()
    found = weights / weights.sum(dim=1, keepdim=True)
    torch.testing.assert_close(found, exact, rtol=2e-5, atol=1e-9)
    torch.testing.assert_close(found[exact > 1e-4], exact[exact > 1e-4], rtol=2e-6, atol=0.0)
