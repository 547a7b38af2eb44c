"""`eagle_aot::int4_small_m` and `eagle_aot::int4_large_m`, INT4 linears as operators.

Each is one node of a graph traced by torch.export. Lowered for a GPU it becomes a kernel of
`small_m.py` or `large_m.py`; on a CPU it runs the reference. Neither importing this module nor
tracing needs triton. Weights are packed (`packing.py`); `features` is N, the rows of the weight.

With an activation, "gelu_tanh" or "silu", the weight is that of a gated unit, with eight gate rows
before eight up rows, and the result is `act(gate) * up`. "" is no activation.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.int4_gemm.packing import PackedInt4, unpack
from eagle_aot.triton_kernels.int4_gemm.reference import gated, int4_linear_reference

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::int4_small_m", mutates_args={})
def int4_small_m(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
) -> Tensor:
    """Multiply `x` bfloat16 [M, K] or [1, M, K] in parts: [splits, ..., M, N].

    The product is the sum of the parts: K is split among `splits` programs. Parts are float32; a
    single part is the product in x's dtype. The weight is read once per tile of rows. A row's bits
    do not depend on M. With an activation there must be one part, of N / 2 columns. Raises
    RuntimeError for a batch, and for an activation of several parts.
    """
    _check_small(x, splits, activation)
    from eagle_aot.triton_kernels.int4_gemm.small_m import launch

    return launch(x, codes, scales, zeros, features, splits, activation)


@int4_small_m.register_kernel("cpu")
def _small_on_cpu(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
) -> Tensor:
    _check_small(x, splits, activation)
    product = _product(x, codes, scales, zeros, features, activation)
    if splits == 1:
        return product.unsqueeze(0)
    return torch.stack((product.float(), *(splits - 1) * (torch.zeros_like(product).float(),)))


@int4_small_m.register_fake
def _small_shape(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
) -> Tensor:
    _check_small(x, splits, activation)
    width = features // 2 if activation else features
    dtype = x.dtype if splits == 1 else torch.float32
    return x.new_empty((splits, *x.shape[:-1], width), dtype=dtype)


@_operator("eagle_aot::int4_large_m", mutates_args={})
def int4_large_m(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, features: int, activation: str
) -> Tensor:
    """Multiply `x` bfloat16 [M, K] or [1, M, K]: [..., M, N], or [..., M, N / 2] if activated.

    The weight is rounded to bfloat16 as by `dequantise_int4`; sums are float32. Raises RuntimeError
    for a batch.
    """
    _check_single(x)
    from eagle_aot.triton_kernels.int4_gemm.large_m import launch

    return launch(x, codes, scales, zeros, features, activation)


@int4_large_m.register_kernel("cpu")
def _large_on_cpu(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, features: int, activation: str
) -> Tensor:
    _check_single(x)
    return _product(x, codes, scales, zeros, features, activation)


@int4_large_m.register_fake
def _large_shape(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, features: int, activation: str
) -> Tensor:
    _check_single(x)
    return x.new_empty((*x.shape[:-1], features // 2 if activation else features))


def _product(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, features: int, activation: str
) -> Tensor:
    qdata, scale, zero_point = unpack(PackedInt4(codes, scales, zeros, features, x.shape[-1]))
    product = int4_linear_reference(x, qdata, scale, zero_point)
    return gated(product, activation) if activation else product


def _check_small(x: Tensor, splits: int, activation: str) -> None:
    _check_single(x)
    is_supported = splits == 1 or not activation
    torch._check(is_supported, lambda: f"int4_small_m cannot activate {splits} parts of a sum")


def _check_single(x: Tensor) -> None:
    is_single = x.ndim == 2 or (x.ndim == 3 and x.shape[0] == 1)
    torch._check(is_single, lambda: "INT4 linears take [M, K] or [1, M, K]")
