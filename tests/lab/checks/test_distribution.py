"""Draws have the probabilities that softmax in float64 gives."""

import pytest
import torch

from eagle_aot.lab.checks.sampling import distribution
from eagle_aot.lab.checks.sampling.distribution import LOGITS, SAMPLINGS, draw, drawn, probabilities


@pytest.mark.parametrize("name", SAMPLINGS)
def test_draws_have_the_right_distribution(name: str) -> None:
    found = drawn(name, SAMPLINGS[name], range(4), 4096)
    assert found.fits, str(found)


def test_other_probabilities_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 % of a token's probability are many deviations at a hundred thousand draws."""
    exact = probabilities(SAMPLINGS["temperature 1"])
    exact[0] *= 1.05
    monkeypatch.setattr(distribution, "probabilities", lambda sampling: exact / exact.sum())
    assert not drawn("other", SAMPLINGS["temperature 1"], range(10), 8192).fits


def test_draws_of_neighbouring_seeds_share_nothing() -> None:
    """Their agreement is that of independent draws."""
    asked = SAMPLINGS["temperature 1"]
    exact, count = probabilities(asked), 8192
    agreed = (draw(asked, 4, count) == draw(asked, 5, count)).double().mean().item()
    chance = float((exact**2).sum())
    assert abs(agreed - chance) < 4 * (chance * (1 - chance) / count) ** 0.5


def test_equal_draws_come_from_equal_seeds() -> None:
    asked = SAMPLINGS["all"]
    assert torch.equal(draw(asked, 2**63 + 1, 500), draw(asked, 2**63 + 1, 500))
    assert len(LOGITS) > draw(asked, 3, 500).unique().numel() > 1
