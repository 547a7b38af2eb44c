"""The router's choice in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.choose_experts import choose_experts_reference
from eagle_aot.triton_kernels.choose_experts.kernel import launch


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 3), (128, 8), (6, 6), (200, 1)])
def test_the_choice_is_that_of_torch(experts: int, top_k: int, norm: bool) -> None:
    torch.manual_seed(experts)
    scores, per_expert = torch.randn(9, experts), torch.rand(experts).bfloat16()
    for scale in (None, per_expert):
        weights, ids = launch(scores, scale, top_k, norm)
        expected, expected_ids = choose_experts_reference(scores, scale, top_k, norm)
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(weights, expected.float(), rtol=1e-6, atol=1e-7)


def test_equal_scores_are_in_the_order_of_experts() -> None:
    scores = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0], [0.0, -0.0, 0.0, -1.0, 0.0]]).bfloat16()
    weights, ids = launch(scores, None, 4, True)
    assert ids.tolist() == [[1, 3, 0, 2], [0, 1, 2, 4]]
    assert torch.equal(weights[1], torch.full((4,), 0.25))


def test_rows_without_a_number_take_experts_that_exist() -> None:
    """Padding rows may hold anything."""
    _, ids = launch(torch.full((2, 6), torch.nan), None, 3, True)
    assert all(len(set(row)) == 3 and set(row) <= set(range(6)) for row in ids.tolist())


def test_a_row_does_not_feel_its_neighbours() -> None:
    scores = torch.randn(5, 128)
    together = launch(scores, None, 8, False)
    for row in range(5):
        alone = launch(scores[row : row + 1], None, 8, False)
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))
