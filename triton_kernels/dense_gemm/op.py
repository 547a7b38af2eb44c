"""`eagle_aot::dense_small_m`, a dense linear for few rows as one operator.

It replaces `aten::linear` in a graph. Lowered for a GPU it becomes the kernel of `kernel.py`; on a
CPU it multiplies with stock operators. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op
from torch.nn import functional as F

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::dense_small_m", mutates_args={})
def dense_small_m(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    """Multiply `x` bfloat16 [..., K] by `weight` bfloat16 [N, K] in parts: [splits, ..., N].

    The product is the sum of the parts: K is split among `splits` programs. Parts are float32; a
    single part is the product in x's dtype. The weight is read once per tile of rows. A row's bits
    do not depend on the number of rows.
    """
    from eagle_aot.triton_kernels.dense_gemm.kernel import launch

    return launch(x, weight, splits)


@dense_small_m.register_kernel("cpu")
def _cpu(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    if splits == 1:
        return F.linear(x, weight).unsqueeze(0)
    product = F.linear(x.float(), weight.float())
    return torch.stack((product, *(splits - 1) * (torch.zeros_like(product),)))


@dense_small_m.register_fake
def _shape(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    dtype = x.dtype if splits == 1 else torch.float32
    return x.new_empty((splits, *x.shape[:-1], weight.shape[0]), dtype=dtype)
