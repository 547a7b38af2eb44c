"""`eagle_aot::choose_experts`, which sorts no more than it needs.

It is one node of a graph traced by torch.export. Lowered for a GPU it becomes the kernel of
`kernel.py`; on a CPU it runs the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.choose_experts.reference import choose_experts_reference

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::choose_experts", mutates_args={})
def choose_experts(
    scores: Tensor, per_expert: Tensor | None, top_k: int, norm_topk_prob: bool
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each row by `scores` [T, E]: weights float32 [T, k], ids int64 [T, k].

    Arguments are those of `choose_experts_reference`. On a GPU the experts of equal scores come in
    the order of their numbers. Each row is computed by itself.
    """
    from eagle_aot.triton_kernels.choose_experts.kernel import launch

    return launch(scores, per_expert, top_k, norm_topk_prob)


@choose_experts.register_kernel("cpu")
def _cpu(
    scores: Tensor, per_expert: Tensor | None, top_k: int, norm_topk_prob: bool
) -> tuple[Tensor, Tensor]:
    weights, ids = choose_experts_reference(scores, per_expert, top_k, norm_topk_prob)
    return weights.float(), ids


@choose_experts.register_fake
def _shapes(
    scores: Tensor, per_expert: Tensor | None, top_k: int, norm_topk_prob: bool
) -> tuple[Tensor, Tensor]:
    shape = scores.shape[0], top_k
    return (
        scores.new_empty(shape, dtype=torch.float32),
        scores.new_empty(shape, dtype=torch.int64),
    )
