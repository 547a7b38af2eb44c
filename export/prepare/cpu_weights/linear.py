"""A linear layer as XNNPACK computes it from quantised weights: inputs are rounded, row by row."""

import torch
import torch.ao.quantization.fx._decomposed  # registers what ExecuTorch calls quantised operators
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.export.prepare.cpu_weights.codes import Codes, frozen

INT8 = torch.iinfo(torch.int8)


def rounded(x: Tensor) -> Tensor:
    """`x` [..., K] as 8 bits hold it, with a scale and a zero point of each row's own.

    Written in the operators that XNNPACK makes one conversion of, in front of a linear.
    """
    operators, bounds = torch.ops.quantized_decomposed, (INT8.min, INT8.max, torch.int8)
    row = operators.choose_qparams_per_token_asymmetric(x, torch.int8)
    codes = operators.quantize_per_token(x, *row, *bounds)
    return operators.dequantize_per_token(codes, *row, *bounds, torch.float32)


class DynamicLinear(nn.Module):
    """`nn.Linear` over `Codes`, traced as what XNNPACK makes one kernel of."""

    bias: nn.Parameter | None

    def __init__(self, weight: Codes, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.codes.shape
        self.bits, self.group_size = weight.bits, weight.group_size
        self.bounds = weight.bounds
        scale = weight.scale if weight.bits == 4 else weight.scale[:, 0]
        # Parameters, which nothing trains: ExecuTorch stores buffers with methods that use none.
        self.weight_codes, self.weight_scale = frozen(weight.codes), frozen(scale)
        self.weight_zero_point = frozen(torch.zeros_like(scale, dtype=torch.int8))
        self.register_parameter("bias", None if bias is None else frozen(bias))

    @property
    def weight(self) -> Codes:
        """The weight."""
        return Codes(
            self.weight_codes, self.weight_scale.view(len(self.weight_codes), -1), self.bits
        )

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N]."""
        return F.linear(rounded(x), self._dequantised(), self.bias)

    def _dequantised(self) -> Tensor:
        operators = torch.ops.quantized_decomposed
        weight = self.weight_codes, self.weight_scale, self.weight_zero_point
        if self.bits == 8:
            return operators.dequantize_per_channel(*weight, 0, *self.bounds, torch.int8)
        size, dtype = self.group_size, torch.float32
        return operators.dequantize_per_channel_group(
            *weight, *self.bounds, torch.int8, size, dtype
        )

    def eager(self) -> nn.Module:
        """The same to be run as it is, with its weight made dense once."""
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        linear.weight = frozen(self.weight.dense())
        if self.bias is not None:
            linear.bias = self.bias
        return RoundedInput(linear)


class RoundedInput(nn.Module):
    """A linear layer whose input is rounded first."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N]."""
        return self.linear(rounded(x))
