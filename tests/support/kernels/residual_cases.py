"""Random residual sums and their expected values in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
Arguments = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, float, float]


@dataclass(frozen=True)
class Case:
    """Parts [splits, 1, rows, hidden] that are added to a stream."""

    splits: int
    rows: int
    hidden: int
    post: bool
    scaled: bool
    branch: float = 1.0

    def arguments(self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Arguments:
        """Return the arguments of the operator.

        A single part has the stream's dtype, several parts are float32.
        """
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
    """Compute the operator in float64, without rounding: both outputs [1, rows, hidden]."""

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x / ((x**2).sum(-1, keepdim=True) / x.shape[-1] + eps) ** 0.5 * weight.double()

    branch = parts.double().sum(0)
    if post_weight is not None:
        branch = norm(branch, post_weight, post_eps)
    total = stream.double() + branch
    if scale is not None:
        total = total * scale.double()
    return total, norm(total, next_weight, next_eps)


def select_rows(arguments: Arguments, rows: slice) -> Arguments:
    """Return the arguments for some of the rows."""
    parts, stream, post_weight, scale, next_weight, post_eps, next_eps = arguments
    few = parts[:, :, rows], stream[:, rows]
    return *few, post_weight, scale, next_weight, post_eps, next_eps


def assert_rounded_alike(
    outputs: tuple[Tensor, Tensor], references: tuple[Tensor, Tensor], share: float
) -> None:
    """Check bfloat16 outputs of any shape bit for bit; a `share` of elements may differ by one bit.

    Sums in another order may round an element the other way.
    """
    for output, reference in zip(outputs, references, strict=True):
        bits = [x.view(torch.int16).int() for x in (output, reference)]
        difference = (bits[0] - bits[1]).abs()
        assert int(difference.max()) <= 1 and float((difference > 0).float().mean()) <= share


def assert_close(outputs: tuple[Tensor, Tensor], arguments: Arguments, tolerance: float) -> None:
    """Check both outputs [1, rows, hidden] against float64, relative to the largest element."""
    for output, expected in zip(outputs, float64(*arguments), strict=True):
        assert output.shape == expected.shape and output.dtype == arguments[1].dtype
        assert (output.double() - expected).abs().max() <= tolerance * expected.abs().max()
