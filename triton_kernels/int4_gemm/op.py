"""`eagle_aot::int4_small_m`, the few-row INT4 linear as one operator.

Traced by torch.export it is one node of the graph. Lowered for a GPU it becomes the kernels of
`kernel.py`; on a CPU it is the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.int4_gemm.reference import int4_linear_reference

SMALL_M_LIMIT = 8
"""Rows that the operator serves at most."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What activations may be."""

# `triton_op` looks for the kernels behind the operator at once, and warns where triton is not
# installed. There the operator is a plain one, without a kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::int4_small_m", mutates_args={})
def int4_small_m(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """`x` [M, K] or [1, M, K] with M in [1, 8], of `DTYPES` -> [..., M, N] in x's dtype.

    Weight [N, K] in the layout of `reference.py`, in groups of an even number of columns. Sums are
    float32, and each row's bits are independent of M. Raises RuntimeError for more rows.
    """
    _check_rows(x)
    from eagle_aot.triton_kernels.int4_gemm.kernel import launch

    return launch(x, qdata, scale, zero_point)


@int4_small_m.register_kernel("cpu")
def _cpu(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    _check_rows(x)
    return int4_linear_reference(x, qdata, scale, zero_point)


@int4_small_m.register_fake
def _shape(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    _check_rows(x)
    return x.new_empty((*x.shape[:-1], qdata.shape[0]))


def _check_rows(x: Tensor) -> None:
    rows = x.shape[-2]
    torch._check(rows <= SMALL_M_LIMIT, lambda: f"int4_small_m serves {SMALL_M_LIMIT} rows")


def is_servable(x: Tensor, qdata: Tensor, scale: Tensor) -> bool:
    """Whether the operator has a kernel for this weight and kind of input, apart from M.

    Of dtypes and static shapes only. A group of an odd number of columns ends inside a byte.
    """
    group = 2 * qdata.shape[1] // scale.shape[0]
    single = x.ndim == 2 or (x.ndim == 3 and x.shape[0] == 1)
    return single and x.dtype in DTYPES and group % 2 == 0
