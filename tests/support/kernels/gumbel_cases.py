"""Logits, scales and keys for tests of Gumbel noise, and logits for those of argmax alone."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """Logits with `levels` different values, 0 for any; the second row is greedy."""

    rows: int
    vocab: int
    mapped: bool = False
    levels: int = 0

    def arguments(
        self, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return logits [rows, vocab], scale [rows], keys [rows, 2] and ids [vocab] or None."""
        generator = torch.Generator().manual_seed(self.rows * 1000 + self.vocab)
        logits = torch.randn(self.rows, self.vocab, generator=generator) * 4
        if self.levels:
            shape = self.rows, self.vocab
            logits = torch.randint(0, self.levels, shape, generator=generator).float()
        logits[:, :: max(self.vocab // 5, 2)] = -torch.inf
        scale = 1 / (torch.rand(self.rows, generator=generator) * 2 + 0.05)
        if self.rows > 1:
            scale[1] = 0.0
        keys = torch.randint(-(2**31), 2**31, (self.rows, 2), generator=generator).int()
        ids = torch.randperm(4 * self.vocab, generator=generator)[: self.vocab].int()
        token_ids = ids.to(device) if self.mapped else None
        return logits.to(dtype).to(device), scale.to(device), keys.to(device), token_ids

    def __str__(self) -> str:
        return f"{self.rows}x{self.vocab}{'-mapped' * self.mapped}-{self.levels}"


CASES = [
    Case(1, 5),
    Case(5, 1000),
    Case(3, 4096, mapped=True),
    Case(2, 10_007, mapped=True),
    Case(4, 5000, levels=2),
]


def check_argmax(argmax: Callable[[Tensor], Tensor], vocab: int, device: str = "cpu") -> None:
    """Check columns [R] of logits [R, vocab]: a row is minus infinity, the others have equals."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(6, vocab, generator=generator).clamp(max=3.0)
    for row, equals in enumerate((1, 2, 3, 20)):
        logits[row, torch.randint(vocab, (equals,), generator=generator)] = 4.0
    logits[4, vocab // 2 :] = 5.0
    logits[5] = -torch.inf
    for dtype in (torch.bfloat16, torch.float32):
        values = logits.to(dtype)
        expected = [row.index(max(row)) for row in values.tolist()]
        assert argmax(values.to(device)).tolist() == expected
