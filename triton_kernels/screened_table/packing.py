"""The INT8 copy of an output table, and how far it is from the table."""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 128
"""Columns that share a scale."""

BOUNDS = {
    "DIGIT": 254.0,  # steps of the second digit of x for one of the first
    "ROUNDING": 2.0**-11,  # errors of float sums, in norms of their factors
    "SATURATED": 128.0,  # larger logits are all computed: a soft cap of 30 may make them equal
}
"""What kernels bound logits by."""

LARGEST = 127
ROWS_AT_ONCE = 8192
"""Rows of a table that are packed at a time: in float64 a table has four times its bytes."""


@dataclass(frozen=True, slots=True)
class ScreenCopy:
    """`values` int8 [N, K'] times `scales` bfloat16 [N, K' / GROUP]; K' is K rounded up to groups.

    `errors` and `norms`, float32 [N], are the Euclidean norms of what each row of the copy lacks of
    the table's, and of the copy's row, both rounded up.
    """

    values: Tensor
    scales: Tensor
    errors: Tensor
    norms: Tensor


def screen_copy(weight: Tensor) -> ScreenCopy:
    """Return the INT8 copy of a table bfloat16 [N, K]."""
    parts = [_packed(part) for part in weight.split(ROWS_AT_ONCE)]
    return ScreenCopy(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _packed(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    padding = -weight.shape[1] % GROUP
    wide = torch.nn.functional.pad(weight.double(), (0, padding)).unflatten(1, (-1, GROUP))
    scales = (wide.abs().amax(-1) / LARGEST).to(torch.bfloat16)
    steps = scales.double().clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
    values = (wide / steps).round().clamp(-LARGEST, LARGEST)
    copy = values * scales.double().unsqueeze(-1)
    errors, norms = (_rounded_up(x.flatten(1).norm(dim=1)) for x in (wide - copy, copy))
    return values.flatten(1).to(torch.int8), scales, errors, norms


def _rounded_up(values: Tensor) -> Tensor:
    """Return float32 numbers that are at least `values`, float64."""
    narrow = values.float()
    above = torch.nextafter(narrow, torch.full_like(narrow, torch.inf))
    return torch.where(narrow < values, above, narrow)
