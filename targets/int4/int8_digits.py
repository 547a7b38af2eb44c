"""Dense weights to INT8 on load, as two INT4 digits that the INT4 kernels multiply.

Symmetric, rounded to nearest. A code q in [-119, 119] is 16 high + low with both digits in
[-8, 7], so a weight [N, K] of codes is an INT4 weight [N, 2 K] over the input beside itself: first
the high digits, in steps of 16 scales, which is exact in any dtype, then the low ones.
"""

import torch
from torch import Tensor

from eagle_aot.targets.int4.nibbles import bytes_of_codes
from eagle_aot.targets.int4.quantise import SMALLEST_SPAN, fill_rows
from eagle_aot.targets.int4.weight import Int4Weight

MAX_CODE = 119
"""The largest code whose low digit fits: 7 x 16 + 7."""
GROUP = 32
BASE = 16
ZERO = 8
"""What the digits are stored above."""


def quantise_int8(weight: Tensor, dtype: torch.dtype) -> Int4Weight:
    """`weight` [N, K] as two digits [N, 2 K]; scales are values of `dtype`, held in float32.

    Codes are chosen for the rounded scale. K is a multiple of `GROUP`.
    """
    rows, columns = weight.shape
    groups = columns // GROUP
    qdata = torch.empty(rows, columns, dtype=torch.uint8)
    scale = torch.empty(2 * groups, rows)

    def fill(part: slice) -> None:  # into place, as in `quantise`
        qdata[part], low_scale = _rows(weight[part].float(), dtype)
        scale[:groups, part], scale[groups:, part] = BASE * low_scale, low_scale

    fill_rows(weight, fill)
    return Int4Weight(qdata, scale, torch.full_like(scale, ZERO), digits=2)


def _rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """qdata [n, K] and the scale of the low digits [K / GROUP, n] of n rows."""
    groups = rows.unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    scale = torch.where(largest > SMALLEST_SPAN, largest / MAX_CODE, 1.0).to(dtype).float()
    codes = (groups / scale).round().clamp(-MAX_CODE, MAX_CODE).flatten(1)
    high = ((codes + ZERO) / BASE).floor()
    digits = torch.cat((high, codes - BASE * high), dim=1) + ZERO
    return bytes_of_codes(digits.to(torch.uint8)), scale.squeeze(-1).t()
