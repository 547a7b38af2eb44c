"""`eagle_aot::screened_logits`, the product with an output table that has an INT8 copy.

Lowered for a GPU it becomes the kernels of `kernel.py`; on a CPU it is the whole product. Neither
importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

from torch import Tensor
from torch.library import custom_op, triton_op
from torch.nn import functional as F

from eagle_aot.triton_kernels.screened_table.packing import ScreenCopy

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::screened_logits", mutates_args={})
def screened_logits(
    x: Tensor,
    weight: Tensor,
    values: Tensor,
    scales: Tensor,
    errors: Tensor,
    norms: Tensor,
    largest_only: Tensor,
) -> Tensor:
    """Multiply `x` bfloat16 [..., K] by `weight` bfloat16 [N, K]: [..., N] in x's dtype.

    `values` to `norms` are a `ScreenCopy` of the weight. Where `largest_only` int64 [1] is 1, only
    logits that equal the largest of their row are those of the product: others may be approximate,
    but are smaller. Rows above the first tile of the dense product are exact in any case.
    """
    from eagle_aot.triton_kernels.screened_table.kernel import launch

    return launch(x, weight, ScreenCopy(values, scales, errors, norms), largest_only)


@screened_logits.register_kernel("cpu")
def _cpu(x: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return F.linear(x, weight)


@screened_logits.register_fake
def _shape(x: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
