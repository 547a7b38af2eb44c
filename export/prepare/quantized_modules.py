"""Linears and tables over INT8 and INT4 weights, as XNNPACK multiplies them.

Weights are symmetric, `w = code * scale`, INT8 by rows or INT4 by groups of columns: XNNPACK's
kernels take no zero point of a weight. Inputs of linears are quantised row by row as they come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.ao.quantization.fx._decomposed  # registers what ExecuTorch calls quantised operators
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.targets.decoder.experts import ExpertLinears

GROUP = 32
"""Columns that share a scale in INT4; XNNPACK takes multiples of it."""
ROWS_AT_ONCE = 256
"""Rows that are quantised at a time, so that what is computed for them needs little memory."""
SMALLEST = 1e-30
"""A group's largest weight, if not zero, is at least this: else its scale would be subnormal."""
SHRINK = tuple(1 - 0.03 * step for step in range(11))
"""Scales that are tried for INT4, as shares of the one that just holds the largest weight."""
INT8 = torch.iinfo(torch.int8)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A [N, K] weight: `codes` int8 [N, K] of `bits` bits, `scale` float32 [N, K / group]."""

    codes: Tensor
    scale: Tensor
    bits: int

    @property
    def group_size(self) -> int:
        """Columns that share a scale."""
        return self.codes.shape[1] // self.scale.shape[1]

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest code."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def dense(self) -> Tensor:
        """Return the weight in float32 [N, K]."""
        groups = self.codes.float().unflatten(1, (-1, self.group_size))
        return (groups * self.scale.unsqueeze(-1)).flatten(1)


def int8_by_rows(weight: Tensor) -> QuantizedWeight:
    """Quantise `weight` float32 [N, K], rounded to nearest."""
    largest = weight.abs().amax(1, keepdim=True)
    scale = torch.where(largest > SMALLEST, largest / 127, 1.0)
    return QuantizedWeight((weight / scale).round().to(torch.int8), scale, 8)


def int4_by_groups(weight: Tensor) -> QuantizedWeight:
    """Quantise `weight` float32 [N, K], K a multiple of `GROUP`.

    Scales are values of bfloat16, as XNNPACK's are. Each group takes the one of the scales that are
    tried with the least mean squared error: one that clips its largest weight may fit all others
    better.
    """
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.int8)
    scale = torch.empty(rows, columns // GROUP)
    for first in range(0, rows, ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        groups = weight[part].unflatten(1, (-1, GROUP))
        scale[part] = _best_scale(groups)
        codes[part] = _int4(groups, scale[part].unsqueeze(-1)).flatten(1).to(torch.int8)
    return QuantizedWeight(codes, scale, 4)


def _best_scale(groups: Tensor) -> Tensor:
    """Return the scales [n, groups] of weights [n, groups, GROUP]."""
    holding = torch.maximum(groups.amax(-1) / 7, groups.amin(-1) / -8)
    holding = torch.where(holding > SMALLEST, holding, 1.0)
    best, least = holding, torch.full_like(holding, torch.inf)
    for share in SHRINK:
        scale = (holding * share).to(torch.bfloat16).float()
        steps = scale.unsqueeze(-1)
        error = (_int4(groups, steps) * steps - groups).square().sum(-1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best


def _int4(groups: Tensor, scale: Tensor) -> Tensor:
    return (groups / scale).round().clamp(-8, 7)


def fake_quantize(x: Tensor) -> Tensor:
    """Round `x` float32 [..., K] to 8 bits, with a scale and a zero point for each row.

    Written in the operators that XNNPACK fuses into one conversion before a linear.
    """
    operators, bounds = torch.ops.quantized_decomposed, (INT8.min, INT8.max, torch.int8)
    scale, zero = operators.choose_qparams_per_token_asymmetric(x, torch.int8)
    codes = operators.quantize_per_token(x, scale, zero, *bounds)
    return operators.dequantize_per_token(codes, scale, zero, *bounds, torch.float32)


class DynamicLinear(nn.Module):
    """`nn.Linear` over a `QuantizedWeight`, traced as what XNNPACK fuses into one kernel."""

    bias: nn.Parameter | None

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.codes.shape
        self.bits, self.group_size = weight.bits, weight.group_size
        self.bounds = weight.bounds
        scale = weight.scale if weight.bits == 4 else weight.scale[:, 0]
        # Parameters without gradients: ExecuTorch stores buffers with methods that use none.
        self.weight_codes, self.weight_scale = frozen(weight.codes), frozen(scale)
        self.weight_zero_point = frozen(torch.zeros_like(scale, dtype=torch.int8))
        self.register_parameter("bias", None if bias is None else frozen(bias))

    @property
    def weight(self) -> QuantizedWeight:
        """The weight."""
        scale = self.weight_scale.view(len(self.weight_codes), -1)
        return QuantizedWeight(self.weight_codes, scale, self.bits)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` float32 [..., K] to [..., N]."""
        return F.linear(fake_quantize(x), self._dequantised(), self.bias)

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
        """Return a module that computes the same eagerly, with its weight made dense once."""
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        linear.weight = frozen(self.weight.dense())
        if self.bias is not None:
            linear.bias = self.bias
        return QuantizedInput(linear)


class QuantizedInput(nn.Module):
    """A linear layer whose input is rounded first."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` float32 [..., K] to [..., N]."""
        return self.linear(fake_quantize(x))


class Int8Table(nn.Module):
    """`nn.Embedding` over an INT8 `QuantizedWeight`: rows that are read are made dense.

    An output table of the same values holds the same codes.
    """

    def __init__(self, weight: QuantizedWeight) -> None:
        super().__init__()
        self.weight_codes, self.weight_scale = frozen(weight.codes), frozen(weight.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids int64 [..., T] to float32 [..., T, H]."""
        return F.embedding(tokens, self.weight_codes).to(torch.float32) * F.embedding(
            tokens, self.weight_scale
        )

    def eager(self) -> nn.Module:
        """Return a module that computes the same, with all rows made dense once."""
        weight = QuantizedWeight(self.weight_codes, self.weight_scale, 8)
        return nn.Embedding.from_pretrained(weight.dense())


class QuantizedExpertLinears(nn.Module):
    """`ExpertLinears` over `QuantizedWeight`s of one format: the weight of a row's expert is made
    dense for that row, whose values stay float32.

    Of codes of 4 bits a byte has that of column c, and above it that of column K / 2 + c, both from
    0 on.
    """

    def __init__(self, weights: Sequence[QuantizedWeight]) -> None:
        super().__init__()
        self.bits, self.group_size = weights[0].bits, weights[0].group_size
        codes = torch.stack([weight.codes for weight in weights])
        if self.bits == 4:
            low, high = ((half + 8).to(torch.uint8) for half in codes.chunk(2, -1))
            codes = low | (high << 4)
        self.weight_codes = frozen(codes)
        self.weight_scale = frozen(torch.stack([weight.scale for weight in weights]))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """E, N and K."""
        experts, rows, codes = self.weight_codes.shape
        return experts, rows, codes * 8 // self.bits

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """Multiply `x` float32 [K] by the weight of one expert, int64 [1]: [N]."""
        return torch.bmm(self._dense(expert), x.view(1, -1, 1)).flatten()

    def _dense(self, expert: Tensor) -> Tensor:
        """Return the weight float32 [1, N, K] of one expert, int64 [1], in operators that have
        kernels on a CPU; those of shifts do not."""
        codes = self.weight_codes.index_select(0, expert).to(torch.float32)
        if self.bits == 4:
            high = torch.floor(codes * (1 / 16))
            codes = torch.cat((codes - 16 * high, high), -1) - 8
        scale = self.weight_scale.index_select(0, expert).unsqueeze(-1)
        return (codes.unflatten(-1, (-1, self.group_size)) * scale).flatten(-2)

    def eager(self) -> nn.Module:
        """Return a module that computes the same, with all weights made dense once."""
        numbers = torch.arange(self.sizes[0]).split(1)
        return ExpertLinears(torch.cat([self._dense(number) for number in numbers]))


def frozen(tensor: Tensor) -> nn.Parameter:
    """Return a parameter without gradients."""
    return nn.Parameter(tensor, requires_grad=False)
