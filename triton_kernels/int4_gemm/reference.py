"""The arithmetic of group-quantised INT4 weights in eager PyTorch: the oracle, and the CPU path.

Layout of a weight W [N, K] in groups of g along K:

- `qdata` uint8 [N, K / 2]: unsigned codes, even k in the low nibble, odd k in the high one;
- `scale`, `zero_point` [K / g, N], so that with j = k // g
  `W[n, k] = (code[n, k] - zero_point[j, n]) * scale[j, n]`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

GATED_ROWS = 8
"""Rows of a gate that lie together, before as many of its up projection: what one thread of a
tensor core holds of both."""


def dequantise_int4(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Dense weight [N, K] in the dtype of `scale`."""
    rows, groups = qdata.shape[0], scale.shape[0]
    codes = torch.stack((qdata & 0xF, qdata >> 4), dim=-1).view(rows, groups, -1)
    centred = codes.to(scale.dtype) - zero_point.t().unsqueeze(-1)
    return (centred * scale.t().unsqueeze(-1)).view(rows, -1)


def int4_linear_reference(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """`x` [..., K] times the transposed dense weight -> [..., N]."""
    return F.linear(x, dequantise_int4(qdata, scale, zero_point).to(x.dtype))


def gated(product: Tensor, activation: str) -> Tensor:
    """[..., N], eight gate columns before eight up columns -> `act(gate) * up` [..., N / 2]."""
    pairs = product.unflatten(-1, (-1, 2, GATED_ROWS))
    gate, up = pairs[..., 0, :], pairs[..., 1, :]
    return (activate(gate, activation) * up).flatten(-2)


def activate(gate: Tensor, activation: str) -> Tensor:
    """The activation called `activation`, elementwise. Raises ValueError for an unknown one."""
    if activation == "silu":
        return F.silu(gate)
    if activation != "gelu_tanh":
        raise ValueError(f"activation {activation!r}: gelu_tanh and silu are known")
    return F.gelu(gate, approximate="tanh")
