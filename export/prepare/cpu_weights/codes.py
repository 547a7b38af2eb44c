"""Dense weights to the codes that XNNPACK multiplies: INT8 by rows, INT4 by groups of columns.

Both are symmetric, `w = code * scale`: XNNPACK's kernels take no zero point of a weight.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

GROUP = 32
"""Columns that share a scale in INT4; XNNPACK takes multiples of it."""
ROWS_AT_ONCE = 256
"""So few that what is computed of them takes no memory to speak of."""
SMALLEST = 1e-30
"""Of a group that is not all zero its largest weight: below, a scale would be no normal number."""
SHRINK = tuple(1 - 0.03 * step for step in range(11))
"""Scales that are tried for INT4, of the one that just holds the largest weight."""


@dataclass(frozen=True, slots=True)
class Codes:
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
        """float32 [N, K]."""
        groups = self.codes.float().unflatten(1, (-1, self.group_size))
        return (groups * self.scale.unsqueeze(-1)).flatten(1)


def int8_by_rows(weight: Tensor) -> Codes:
    """`weight` [N, K], rounded to nearest."""
    largest = weight.abs().amax(1, keepdim=True)
    scale = torch.where(largest > SMALLEST, largest / 127, 1.0)
    return Codes((weight / scale).round().to(torch.int8), scale, 8)


def int4_by_groups(weight: Tensor) -> Codes:
    """`weight` [N, K], K a multiple of `GROUP`; scales are values of bfloat16, as XNNPACK's are.

    Of the scales that are tried each group takes the one with the least mean squared error: one
    that clips its largest weight may fit all others better.
    """
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.int8)
    scale = torch.empty(rows, columns // GROUP)
    for first in range(0, rows, ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        groups = weight[part].unflatten(1, (-1, GROUP))
        scale[part] = _best_scale(groups)
        codes[part] = _int4(groups, scale[part].unsqueeze(-1)).flatten(1).to(torch.int8)
    return Codes(codes, scale, 4)


def _best_scale(groups: Tensor) -> Tensor:
    """Of [n, groups, GROUP] -> [n, groups]."""
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


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter that nothing trains."""
    return nn.Parameter(tensor, requires_grad=False)
