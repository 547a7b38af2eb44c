"""A linear layer over an INT4 weight."""

import torch
from torch import Tensor, nn

from eagle_aot.targets.int4.weight import Int4Weight, repeated
from eagle_aot.triton_kernels.int4_gemm import int4_linear_reference


class Int4Linear(nn.Module):
    """Drop-in for a bias-free `nn.Linear`, INT4 or INT8; activations keep their dtype.

    It dequantises wherever it runs. `PackedInt4Linear` is what GPU kernels read.
    """

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, weight: Int4Weight, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, columns = weight.shape
        self.in_features, self.digits = columns // weight.digits, weight.digits
        self.group_size = weight.group_size
        self.register_buffer("qdata", weight.qdata)
        self.register_buffer("scale", weight.scale.to(dtype))
        self.register_buffer("zero_point", weight.zero_point.to(dtype))

    @property
    def weight(self) -> Int4Weight:
        """The weight, scale and zero point in the layer's dtype."""
        return Int4Weight(self.qdata, self.scale, self.zero_point, digits=self.digits)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [1, M, K] -> [1, M, N]."""
        x = repeated(x, self.digits)
        return int4_linear_reference(x, self.qdata, self.scale, self.zero_point)

    def dense(self) -> nn.Linear:
        """The same layer with its weight dequantised."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight.dense(), requires_grad=False)
        return linear


class Biased(nn.Module):
    """A bias-free linear and what is added to its product."""

    bias: Tensor

    def __init__(self, linear: nn.Module, bias: Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [1, M, K] -> [1, M, N]."""
        return self.linear(x) + self.bias
