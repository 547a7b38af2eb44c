"""Root-mean-square normalisation."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` along the last dimension, accumulated in float32.

    The weight multiplies as it is (not `1 + weight`), as in Gemma 4, Llama, Qwen3 and every EAGLE-3
    head. `dim=None` normalises without a weight.
    """

    weight: nn.Parameter | None

    def __init__(self, dim: int | None, eps: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        weight = None if dim is None else nn.Parameter(torch.ones(dim, dtype=dtype))
        self.register_parameter("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` [..., dim]; same shape and dtype."""
        wide = cast(x, torch.float32)
        normed = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + self.eps)
        if self.weight is not None:
            normed = normed * cast(self.weight, torch.float32)
        return cast(normed, x.dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert `x` [...] to `dtype`; adds no node to a traced graph if it has that dtype already."""
    return x if x.dtype == dtype else x.to(dtype)
