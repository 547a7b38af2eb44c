"""The arithmetic of experts in eager PyTorch: the reference and the CPU path."""

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_experts.packing import PackedExpertsWeight
from eagle_aot.triton_kernels.int4_gemm.reference import gated, int4_linear_reference


def int4_experts_reference(
    x: Tensor, ids: Tensor, factors: Tensor | None, weight: PackedExpertsWeight, activation: str
) -> Tensor:
    """Do what `op.int4_experts_few` does, by expert: [M k, N] or [k, M, N]."""
    rows, top_k = ids.shape
    taken = ids.flatten()
    width = weight.rows // 2 if activation else weight.rows
    out = x.new_empty((rows * top_k, width))
    for expert in taken.unique().tolist():
        at = (taken == expert).nonzero().flatten()
        inputs = x[at // top_k if factors is None else at]
        product = int4_linear_reference(inputs, *weight.canonical(expert))
        out[at] = gated(product, activation) if activation else product
    if factors is None:
        return out
    scaled = out.float() * factors.reshape(-1, 1)
    return scaled.view(rows, top_k, width).transpose(0, 1).contiguous()


def experts_order_reference(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Do what `op.experts_order` does: [M k] and [E + 1]."""
    taken = ids.flatten()
    counts = (taken.unsqueeze(1) == torch.arange(experts)).sum(0)
    ends = counts.cumsum(0)
    return taken.argsort(stable=True).int(), torch.cat((ends[:1] * 0, ends)).int()
