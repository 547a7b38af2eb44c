"""What a draft is judged by: the chances that it, or another, had of being right."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from bench_coupling import chances, judged
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.sampling.parameters import Sampling


def drafter(target_ids: list[int] | None) -> Eagle3Drafter:
    ids = None if target_ids is None else torch.tensor(target_ids)
    return cast(Eagle3Drafter, SimpleNamespace(target_ids=ids))


@pytest.mark.parametrize(
    ("target_ids", "target"), [(None, [0.5, 0.3, 0.2]), ([3, 0, 2], [0.3, 0.0, 0.2, 0.5])]
)
def test_chances_of_a_draft(target_ids: list[int] | None, target: list[float]) -> None:
    head = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    chosen = torch.tensor(target, dtype=torch.float64)
    found = judged(chosen, head, drafter(target_ids), came=True)
    assert found == pytest.approx((1.0, 0.5, 0.5 + 0.1 + 0.2))


def test_chances_are_softmax_over_the_temperature() -> None:
    logits = torch.tensor([0.0, 2.0])
    found = chances(logits, Sampling(temperature=2.0, seed=1))
    assert found.tolist() == pytest.approx([1 / (1 + torch.e), torch.e / (1 + torch.e)])
