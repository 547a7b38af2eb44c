"""The residual sum and its norms in eager PyTorch: the oracle, and the CPU path."""

import torch
from torch import Tensor


def residual_norm_reference(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
) -> tuple[Tensor, Tensor]:
    """As `op.residual_norm`: every step rounds to the stream's dtype, as separate modules do."""
    branch = parts.sum(0).to(stream.dtype)
    if post_weight is not None:
        branch = _rms_norm(branch, post_weight, post_eps)
    stream = stream + branch
    if scale is not None:
        stream = stream * scale
    return stream, _rms_norm(stream, next_weight, next_eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    normed = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.to(torch.float32)).to(x.dtype)
