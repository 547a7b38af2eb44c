"""The gated MLPs of experts over packed INT4 weights, and their dispatch between few and many rows.

The choice is that of `int4_gemm/api.py`: it is made while a graph is traced, from the range of the
row count.
"""

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_experts.op import (
    experts_order,
    int4_experts_few,
    int4_experts_many,
)
from eagle_aot.triton_kernels.int4_experts.tiling import MAX_FEW_ROWS
from eagle_aot.triton_kernels.int4_gemm import api

Packed = tuple[Tensor, Tensor, Tensor | None, int]
"""Codes, scales, zeros (or None) and N of a packed stack."""


def int4_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Packed,
    down: Packed,
    activation: str,
    digits: tuple[int, int] = (1, 1),
) -> Tensor:
    """Apply experts `ids` int64 [M, k] to `x` bfloat16 [M, H]: float32 [k, M, H].

    Results are multiplied by `weights` float32 [M, k]; their sum in ascending order is the mixture.
    `digits` are those of both weights, which repeat their inputs.
    """
    x = _repeated(x, digits[0])
    weights = weights.float()
    if x.shape[0] <= min(api.MATVEC_MAX_M, MAX_FEW_ROWS):
        hidden = int4_experts_few(x, ids, None, *gate_up, activation)
        return int4_experts_few(_repeated(hidden, digits[1]), ids, weights, *down, "")
    order, starts = experts_order(ids, gate_up[0].shape[0])
    hidden = int4_experts_many(x, ids, order, starts, None, *gate_up, activation)
    hidden = _repeated(hidden, digits[1])
    return int4_experts_many(hidden, ids, order, starts, weights, *down, "")


def _repeated(x: Tensor, digits: int) -> Tensor:
    return x if digits == 1 else torch.cat(digits * (x,), dim=-1)
