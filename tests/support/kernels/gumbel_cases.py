"""Logits, scales and keys for tests of the choice under noise."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """`levels` different logits, any where it is 0; the second row is greedy."""

    rows: int
    vocab: int
    mapped: bool = False
    levels: int = 0

    def arguments(
        self, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """As the operators take them."""
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
        found = logits.to(dtype), scale, keys, ids if self.mapped else None
        return tuple(x if x is None else x.to(device) for x in found)  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"{self.rows}x{self.vocab}{'-mapped' * self.mapped}-{self.levels}"


CASES = [
    Case(1, 5),
    Case(5, 1000),
    Case(3, 4096, mapped=True),
    Case(2, 10_007, mapped=True),
    Case(4, 5000, levels=2),
]
