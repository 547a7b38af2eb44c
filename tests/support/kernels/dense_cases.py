"""Random dense products in bfloat16 and their expected values in float64."""

import torch
from torch import Tensor

SLACK = 1e-5
"""Error of float32 sums, relative to the sum of magnitudes."""


def factors(rows: int, features: int, columns: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return x [1, rows, columns] and a weight [features, columns], bfloat16."""
    generator = torch.Generator(device).manual_seed(features + columns)
    x = torch.randn(1, rows, columns, generator=generator, device=device)
    weight = torch.randn(features, columns, generator=generator, device=device)
    return x.bfloat16(), weight.bfloat16()


def assert_product(parts: Tensor, x: Tensor, weight: Tensor) -> None:
    """Check that parts [splits, ..., N] add up to x W^T, summed in float32 and rounded once."""
    exact = x.double() @ weight.double().t()
    magnitude = x.double().abs() @ weight.double().abs().t()
    bound = 0.51 * torch.finfo(parts.dtype).eps * exact.abs() + SLACK * magnitude
    assert bool(((parts.double().sum(0) - exact).abs() <= bound).all())
