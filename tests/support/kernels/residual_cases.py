"""Random residual sums and what they must be, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
Arguments = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, float, float]


@dataclass(frozen=True)
class Case:
    """Parts [splits, 1, rows, hidden] that join a stream."""

    splits: int
    rows: int
    hidden: int
    post: bool
    scaled: bool
    branch: float = 1.0

    def arguments(self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Arguments:
        """What the operator takes. A single part is of the stream's dtype, several are float32."""
        generator = torch.Generator(device).manual_seed(self.hidden + self.splits)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device)

        # Small enough that eps matters
        parts = self.branch * normal(self.splits, 1, self.rows, self.hidden)
        return (
            parts.to(dtype) if self.splits == 1 else parts,
            normal(1, self.rows, self.hidden).to(dtype),
            (1 + normal(self.hidden) / 4).to(dtype) if self.post else None,
            (0.5 + normal(1).abs()).to(dtype) if self.scaled else None,
            (1 + normal(self.hidden) / 4).to(dtype),
            EPS,
            4 * EPS,
        )


CASES = [
    Case(1, 8, 256, post=False, scaled=False),  # Llama, Qwen3
    Case(6, 8, 320, post=True, scaled=False),
    Case(3, 5, 96, post=True, scaled=True),
    Case(8, 1, 64, post=False, scaled=True),
    Case(2, 4, 128, post=True, scaled=False, branch=1e-3),
]


def float64(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
) -> tuple[Tensor, Tensor]:
    """Nothing rounded."""

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x / ((x**2).sum(-1, keepdim=True) / x.shape[-1] + eps) ** 0.5 * weight.double()

    branch = parts.double().sum(0)
    if post_weight is not None:
        branch = norm(branch, post_weight, post_eps)
    total = stream.double() + branch
    if scale is not None:
        total = total * scale.double()
    return total, norm(total, next_weight, next_eps)


def assert_rounded_alike(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], most: float
) -> None:
    """Equal but for sums in another order, which may round an element of bfloat16 the other way:
    of `most` of all elements, by one bit."""
    for output, other in zip(found, expected, strict=True):
        bits = [x.view(torch.int16).int() for x in (output, other)]
        apart = (bits[0] - bits[1]).abs()
        assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) <= most


def assert_close(found: tuple[Tensor, Tensor], arguments: Arguments, tolerance: float) -> None:
    """Both results, relative to the largest element."""
    for output, expected in zip(found, float64(*arguments), strict=True):
        assert output.shape == expected.shape and output.dtype == arguments[1].dtype
        assert (output.double() - expected).abs().max() <= tolerance * expected.abs().max()
