"""Draws have the probabilities that softmax in float64 gives."""

import pytest
import torch

from eagle_aot.lab.checks import draws
from eagle_aot.lab.checks.draws import LOGITS, SAMPLINGS, draw, probabilities, statistics_of


@pytest.mark.parametrize("name", SAMPLINGS)
def test_draws_have_the_right_distribution(name: str) -> None:
    statistics = statistics_of(name, SAMPLINGS[name], range(4), 4096)
    assert statistics.fits, str(statistics)


def test_draws_of_another_distribution_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 % of a token's probability are many deviations at a hundred thousand draws."""
    exact = probabilities(SAMPLINGS["temperature 1"])
    exact[0] *= 1.05
    monkeypatch.setattr(draws, "probabilities", lambda sampling: exact / exact.sum())
    assert not statistics_of("other", SAMPLINGS["temperature 1"], range(10), 8192).fits


def test_draws_of_neighbouring_seeds_are_independent() -> None:
    """Their agreement is that of independent draws."""
    sampling = SAMPLINGS["temperature 1"]
    exact, count = probabilities(sampling), 8192
    agreed = (draw(sampling, 4, count) == draw(sampling, 5, count)).double().mean().item()
    chance = float((exact**2).sum())
    assert abs(agreed - chance) < 4 * (chance * (1 - chance) / count) ** 0.5


def test_equal_seeds_draw_equal_tokens() -> None:
    sampling = SAMPLINGS["all"]
    assert torch.equal(draw(sampling, 2**63 + 1, 500), draw(sampling, 2**63 + 1, 500))
    assert len(LOGITS) > draw(sampling, 3, 500).unique().numel() > 1
