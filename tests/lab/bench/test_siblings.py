"""What an oracle of experts saves: the bounds that it must keep."""

import pytest
import torch

from eagle_aot.lab.bench import siblings
from eagle_aot.lab.bench.siblings import TOP_K, Likeness, chosen, routes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "TEXTS", 4)
    monkeypatch.setattr(siblings, "LAYERS", 2)
    torch.manual_seed(0)


def test_rows_take_as_many_experts_and_rows_of_a_kind_the_same() -> None:
    taken = routes(40, Likeness(0.0, 1.0))
    assert (taken.sum(-1) == TOP_K).all()
    kinds = {tuple(row.flatten().tolist()) for row in taken[0].unbind(1)}
    assert 1 < len(kinds) <= siblings.KINDS


def test_the_oracle_saves_experts_unless_all_rows_take_the_same() -> None:
    usual, best = chosen(8, 4, Likeness(0.0, 0.0))
    assert 4 * TOP_K > usual / 2 > best / 2 > TOP_K
    assert chosen(8, 4, Likeness(1.0, 0.0)) == (TOP_K, TOP_K)
