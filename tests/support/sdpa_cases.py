"""Random attention layers, and what they must compute, from the definition."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Layer:
    """Attention of `heads` query heads over `kv_heads`; ring if `window` is not 0."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    dtype: torch.dtype

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def queries(self, rows: int, device: str = "cpu") -> Tensor:
        """[1, rows, heads, D]; scores spread enough for a few keys to matter most."""
        return 3 * self._random((1, rows, self.heads, self.head_dim), 1, device)

    def cache(
        self, input_pos: Sequence[int], slots: int, hidden: float, device: str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """k and v [1, kv_heads, slots, D] in which slots that no row sees hold `hidden`.

        The entry of a position is the same in caches of every length.
        """
        slots = 2 * self.window or slots
        seen = self.mask(input_pos, slots, device).any(dim=0).unsqueeze(-1)
        shape = 1, slots, self.kv_heads, self.head_dim
        k, v = (self._random(shape, seed, device).transpose(1, 2) for seed in (2, 3))
        return tuple(torch.where(seen, x, hidden).contiguous() for x in (k, v))

    def mask(self, input_pos: Sequence[int], slots: int, device: str = "cpu") -> Tensor:
        """Which slots a row sees, bool [rows, slots]."""
        mask = torch.zeros(len(input_pos), slots, dtype=torch.bool, device=device)
        for row, position in enumerate(input_pos):
            first = max(0, position - self.window + 1) if self.window else 0
            seen = torch.arange(first, position + 1, device=device)
            mask[row, seen % slots] = True
        return mask

    def expected(self, q: Tensor, k: Tensor, v: Tensor, input_pos: Sequence[int]) -> Tensor:
        """PyTorch's attention in float64, [1, rows, heads, D]."""
        rows, group = q.shape[1], self.heads // self.kv_heads
        mask = self.mask(input_pos, k.shape[2], str(q.device))
        k, v = (torch.where(mask.any(dim=0).unsqueeze(-1), x, 0.0).double() for x in (k, v))
        # As many rows instead of as many copies of the keys.
        grouped = q.double().view(1, rows, self.kv_heads, group, -1).permute(0, 2, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            grouped.flatten(2, 3), k, v, mask.repeat(group, 1), scale=self.scale
        )
        attended = attended.unflatten(2, (group, rows)).flatten(1, 2)
        return attended.transpose(1, 2)

    def _random(self, shape: tuple[int, ...], seed: int, device: str) -> Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=device).to(self.dtype)


def relative_error(output: Tensor, expected: Tensor) -> float:
    """The worst row's root-mean-square error, relative to that of what is expected."""
    error = (output.double() - expected).square().mean(dim=-1).sqrt()
    return float((error / expected.square().mean(dim=-1).sqrt()).max())
