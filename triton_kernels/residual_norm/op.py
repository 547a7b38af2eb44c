"""`eagle_aot::residual_norm`, the end of one branch of a decoder layer and the start of the next.

It is one node of a graph traced by torch.export. Lowered for a GPU it becomes the kernel of
`kernel.py`; on a CPU it runs the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::residual_norm", mutates_args={})
def residual_norm(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
) -> tuple[Tensor, Tensor]:
    """Add a branch to `stream` [1, T, H]; return the sum and the normalised sum, both [1, T, H].

    `parts` [S, 1, T, H] add up to the branch, in ascending order. The branch is RMS-normalised with
    `post_weight` [H], the sum is multiplied by `scale` [1] or [1, 1], and then normalised with
    `next_weight` [H]; the first two are optional. Each row is computed by itself. Results have the
    stream's dtype.
    """
    from eagle_aot.triton_kernels.residual_norm.kernel import launch

    return launch(parts, stream, post_weight, scale, next_weight, post_eps, next_eps)


@residual_norm.register_kernel("cpu")
def _cpu(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
) -> tuple[Tensor, Tensor]:
    return residual_norm_reference(
        parts, stream, post_weight, scale, next_weight, post_eps, next_eps
    )


@residual_norm.register_fake
def _shapes(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(stream), torch.empty_like(stream)


def residual_norm_reference(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
) -> tuple[Tensor, Tensor]:
    """Do what `residual_norm` does, [1, T, H], rounding after each step as separate modules do."""
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
