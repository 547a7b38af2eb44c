"""`eagle_aot::residual_norm`, the end of one branch of a decoder layer and the start of the next.

Traced by torch.export it is one node of the graph. Lowered for a GPU it becomes the kernel of
`kernel.py`; on a CPU it is the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.residual_norm.reference import residual_norm_reference

# `triton_op` warns where triton is not installed; there the operator has no kernel for GPUs.
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
    """The stream with a branch added, and that normalised: both [1, T, H], in the stream's dtype.

    `parts` [S, 1, T, H] add up to the branch, in ascending order. The branch is RMS-normalised
    with `post_weight` [H] where there is one, the sum multiplied with `scale`, [1] or [1, 1], where
    there is one, and normalised with `next_weight` [H]. Every row by itself.
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
