"""Root-mean-square normalisation."""

import torch
from torch import Tensor, nn

from eagle_aot.triton_kernels.residual_norm import residual_norm


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` along the last dimension, accumulated in float32.

    The weight multiplies as it is (not `1 + weight`), as in Gemma 4, Llama, Qwen3 and every EAGLE-3
    head. `dim=None` normalises without a weight. With `uses_operator`, which needs one, `x` is
    [1, T, dim], and a GPU's program has the kernel that normalises after branches.
    """

    weight: nn.Parameter | None
    uses_operator = False

    def __init__(self, dim: int | None, eps: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        weight = None if dim is None else nn.Parameter(torch.ones(dim, dtype=dtype))
        self.register_parameter("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` [..., dim]; same shape and dtype."""
        if self.uses_operator:
            assert self.weight is not None
            nothing = torch.zeros_like(x).unsqueeze(0)
            return residual_norm(nothing, x, None, None, self.weight, 0.0, self.eps)[1]
        wide = cast(x, torch.float32)
        normed = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + self.eps)
        if self.weight is not None:
            normed = normed * cast(self.weight, torch.float32)
        return cast(normed, x.dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert `x` [...] to `dtype`; adds no node to a traced graph if it has that dtype already."""
    return x if x.dtype == dtype else x.to(dtype)
