"""A linear layer over an INT4 weight."""

import torch
from torch import Tensor, nn

from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.triton_kernels.int4_gemm import dequantise_int4, int4_linear_reference


class Int4Linear(nn.Module):
    """Drop-in for a bias-free `nn.Linear`; activations keep their dtype (W4A16).

    It dequantises wherever it runs. `PackedInt4Linear` is what GPU kernels read.
    """

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, weight: Int4Weight, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.group_size = weight.group_size
        self.register_buffer("qdata", weight.qdata)
        self.register_buffer("scale", weight.scale.to(dtype))
        self.register_buffer("zero_point", weight.zero_point.to(dtype))

    @property
    def weight(self) -> Int4Weight:
        """The weight, scale and zero point in the layer's dtype."""
        return Int4Weight(self.qdata, self.scale, self.zero_point)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [1, M, K] -> [1, M, N]."""
        return int4_linear_reference(x, self.qdata, self.scale, self.zero_point)

    def dense(self) -> nn.Linear:
        """The same layer with its weight dequantised."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        weight = dequantise_int4(self.qdata, self.scale, self.zero_point)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        return linear
