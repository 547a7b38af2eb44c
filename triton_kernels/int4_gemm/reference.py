"""The arithmetic of group-quantised INT4 weights in eager PyTorch: the reference and the CPU path.

Layout of a weight W [N, K] in groups of g along K:

- `qdata` uint8 [N, K / 2]: unsigned codes, even k in the low nibble, odd k in the high nibble;
- `scale`, `zero_point` [K / g, N], so that with j = k // g
  `W[n, k] = (code[n, k] - zero_point[j, n]) * scale[j, n]`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

GATED_ROWS = 8
"""Gate rows that are stored together, before as many up rows: one thread of a tensor core holds
that many of both."""


def dequantise_int4(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Dequantise to a dense weight [N, K] in the dtype of `scale`."""
    rows, groups = qdata.shape[0], scale.shape[0]
    codes = torch.stack((qdata & 0xF, qdata >> 4), dim=-1).view(rows, groups, -1)
    centred = codes.to(scale.dtype) - zero_point.t().unsqueeze(-1)
    return (centred * scale.t().unsqueeze(-1)).view(rows, -1)


def int4_linear_reference(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Multiply `x` [..., K] by the transposed dense weight: [..., N]."""
    return F.linear(x, dequantise_int4(qdata, scale, zero_point).to(x.dtype))


def gated(product: Tensor, activation: str) -> Tensor:
    """Activate [..., N], eight gate columns before eight up columns: [..., N / 2]."""
    pairs = product.unflatten(-1, (-1, 2, GATED_ROWS))
    gate, up = pairs[..., 0, :], pairs[..., 1, :]
    return (activate(gate, activation) * up).flatten(-2)


def activate(gate: Tensor, activation: str) -> Tensor:
    """Apply "silu" or "gelu_tanh" to `gate` [...]. Raises ValueError for another activation."""
    if activation == "silu":
        return F.silu(gate)
    if activation != "gelu_tanh":
        raise ValueError(f"activation {activation!r}: gelu_tanh and silu are known")
    return F.gelu(gate, approximate="tanh")
