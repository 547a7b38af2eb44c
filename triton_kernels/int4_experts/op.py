"""Products with the INT4 weights of experts, as operators.

Each is one node of a graph traced by torch.export. Lowered for a GPU it becomes a kernel of
`few_rows.py`, `many_rows.py` or `order.py`; on a CPU it runs the reference. Neither importing this
module nor tracing needs triton.

Rows take experts: `ids` int64 [M, k]. An assignment is one expert of one row; number `r * k + j` is
the expert of rank j of row r. Weights are packed (`packing.py`): codes [E, N tiles, K blocks,
4096]. `features` is N; with an activation the weight is that of a gated unit, as in
`int4_gemm/op.py`.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.int4_experts.packing import PackedExpertsWeight
from eagle_aot.triton_kernels.int4_experts.reference import (
    experts_order_reference,
    int4_experts_reference,
)

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::int4_experts_few", mutates_args={})
def int4_experts_few(
    x: Tensor,
    ids: Tensor,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
) -> Tensor:
    """Multiply up to 64 rows by the experts that they take; each expert is read once.

    Without `factors`, `x` bfloat16 [M, K] are the rows: [M k, N] in x's dtype, by assignment, or
    [M k, N / 2] with an activation. With `factors` float32 [M, k], `x` [M k, K] has a row for each
    assignment, and the result float32 [k, M, N] is multiplied by them; its sum in ascending order
    is the mixture. A row's bits do not depend on the other rows or on their experts.
    """
    from eagle_aot.triton_kernels.int4_experts.few_rows import launch

    return launch(x, ids, factors, codes, scales, zeros, features, activation)


@int4_experts_few.register_kernel("cpu")
def _few_on_cpu(
    x: Tensor,
    ids: Tensor,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
) -> Tensor:
    weight = PackedExpertsWeight(codes, scales, zeros, features, x.shape[-1])
    return int4_experts_reference(x, ids, factors, weight, activation)


@int4_experts_few.register_fake
def _few_shape(
    x: Tensor,
    ids: Tensor,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
) -> Tensor:
    return new_result(x, ids, factors, features, activation)


@_operator("eagle_aot::experts_order", mutates_args={})
def experts_order(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Sort assignments by expert, and by number among equal ones.

    Returns the assignments int32 [M k] and where those of each expert start, int32 [E + 1].
    """
    from eagle_aot.triton_kernels.int4_experts.order import launch

    return launch(ids, experts)


@experts_order.register_kernel("cpu")
def _order_on_cpu(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    return experts_order_reference(ids, experts)


@experts_order.register_fake
def _order_shape(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    rows, top_k = ids.shape
    return (
        ids.new_empty((rows * top_k,), dtype=torch.int32),
        ids.new_empty((experts + 1,), dtype=torch.int32),
    )


@_operator("eagle_aot::int4_experts_many", mutates_args={})
def int4_experts_many(
    x: Tensor,
    ids: Tensor,
    order: Tensor,
    starts: Tensor,
    factors: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    activation: str,
) -> Tensor:
    """Do what `int4_experts_few` does for any number of rows, with the same bits.

    `order` and `starts` are those of `experts_order`. An expert is read once per 64 of its rows.
    """
    from eagle_aot.triton_kernels.int4_experts.many_rows import launch

    return launch(x, ids, order, starts, factors, codes, scales, zeros, features, activation)


@int4_experts_many.register_kernel("cpu")
def _many_on_cpu(x: Tensor, ids: Tensor, order: Tensor, starts: Tensor, *rest: Any) -> Tensor:
    return _few_on_cpu(x, ids, *rest)


@int4_experts_many.register_fake
def _many_shape(x: Tensor, ids: Tensor, order: Tensor, starts: Tensor, *rest: Any) -> Tensor:
    return _few_shape(x, ids, *rest)


def new_result(
    x: Tensor, ids: Tensor, factors: Tensor | None, features: int, activation: str
) -> Tensor:
    """Allocate what both products return, [M k, N], [M k, N / 2] or [k, M, N]."""
    rows, top_k = ids.shape
    if factors is not None:
        return x.new_empty((top_k, rows, features), dtype=torch.float32)
    return x.new_empty((rows * top_k, features // 2 if activation else features))
