"""Logits for tests of top-k log probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """Logits with `levels` different values, 0 for any; every seventh column is minus infinity."""

    rows: int
    vocab: int
    k: int
    levels: int = 0

    def logits(self) -> Tensor:
        """Return float32 [rows, vocab]."""
        generator = torch.Generator().manual_seed(self.rows * 1000 + self.vocab)
        shape = self.rows, self.vocab
        logits = torch.randn(shape, generator=generator) * 6
        if self.levels:
            logits = torch.randint(-2, self.levels - 2, shape, generator=generator).float()
        logits[:, 6::7] = -torch.inf
        return logits

    def __str__(self) -> str:
        return f"{self.rows}x{self.vocab}-{self.k}-{self.levels}"


CASES = [
    Case(1, 5, 4),
    Case(3, 1024, 1),
    Case(8, 8192, 8),
    Case(2, 10_007, 16),
    Case(4, 5000, 3, levels=4),
]


def check(case: Case, scores: Tensor, columns: Tensor) -> None:
    """Check scores and columns [R, k] against a stable sort in float64."""
    logits = case.logits().double()
    expected, order = logits.log_softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(columns.cpu(), order[:, : case.k])
    torch.testing.assert_close(scores.cpu().double(), expected[:, : case.k], atol=2e-6, rtol=1e-6)
