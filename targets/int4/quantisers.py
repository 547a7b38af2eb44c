"""Dense weights in fewer bits on load, by the names of options: INT4, or INT8 as two INT4 digits.

INT8 is symmetric and rounded to nearest. A code q in [-119, 119] is 16 * high + low with both
digits in [-8, 7], so a weight [N, K] of such codes is an INT4 weight [N, 2 K] whose input is
repeated: first the high digits, with scales 16 times as large, which is exact in any dtype, then
the low ones. The INT4 kernels multiply both.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from eagle_aot.targets.int4.quantise import SMALLEST_SPAN, Scheme, fill_rows, quantise
from eagle_aot.targets.int4.weight import Int4Weight, bytes_of_codes

MAX_CODE = 119
"""The largest code whose low digit fits: 7 * 16 + 7."""
GROUP = 32
BASE = 16
DIGIT_ZERO = 8
"""Offset of the stored digits."""

Quantiser = Callable[[Tensor, torch.dtype], Int4Weight]


def quantise_int4(weight: Tensor, dtype: torch.dtype) -> Int4Weight:
    """Quantise `weight` [N, K] to INT4 with a zero point per group."""
    return quantise(weight, Scheme(GROUP), dtype)


def quantise_int8(weight: Tensor, dtype: torch.dtype) -> Int4Weight:
    """Quantise `weight` [N, K] to two digits [N, 2 K]; K must be a multiple of `GROUP`.

    Scales are values of `dtype`, stored as float32, and codes are chosen for the rounded scales.
    """
    rows, columns = weight.shape
    groups = columns // GROUP
    qdata = torch.empty(rows, columns, dtype=torch.uint8)
    scale = torch.empty(2 * groups, rows)

    def fill(part: slice) -> None:  # in place, as in `quantise`
        qdata[part], low_scale = _quantise_rows(weight[part].float(), dtype)
        scale[:groups, part], scale[groups:, part] = BASE * low_scale, low_scale

    fill_rows(weight, fill)
    return Int4Weight(qdata, scale, torch.full_like(scale, DIGIT_ZERO), digits=2)


def _quantise_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return qdata [n, K] and the scale of the low digits [K / GROUP, n] of `rows` [n, K]."""
    groups = rows.unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    scale = torch.where(largest > SMALLEST_SPAN, largest / MAX_CODE, 1.0).to(dtype).float()
    codes = (groups / scale).round().clamp(-MAX_CODE, MAX_CODE).flatten(1)
    high = ((codes + DIGIT_ZERO) / BASE).floor()
    digits = torch.cat((high, codes - BASE * high), dim=1) + DIGIT_ZERO
    return bytes_of_codes(digits.to(torch.uint8)), scale.squeeze(-1).t()


NONE = "none"
QUANTISERS: dict[str, Quantiser] = {"int8": quantise_int8, "int4": quantise_int4}
QUANTS = (NONE, *QUANTISERS)
"""The values of `--draft-quant` and `--table-quant`."""
