"""Gumbel noise of 32 random bits, as a table that is the same on every machine.

The last bits of -log(-log(u)) differ between libraries. So the table is computed with float64
additions, multiplications and divisions, which round alike everywhere, and it is read with float32
operations that round only once, in a sum.

32 bits h are a sign and a distance: `h >= 0` is u = 1 - (h + 0.5) / 2**32, the upper half, else
u = (~h + 0.5) / 2**32. The distance, as a float32, is looked up by its exponent and the first
`MANTISSA` bits of its mantissa. Between two entries the noise is linear: `base + slope * rest`. The
slope has so few bits that the product is exact, so it does not matter whether a machine fuses it
into the sum. The error of the table is at most 1e-5.
"""

from functools import cache

import torch
from torch import Tensor

MANTISSA = 8
REST_BITS = 23 - MANTISSA
SLOPE_BITS = 24 - REST_BITS
FIRST = (127 << MANTISSA) - 1
"""Subtracted from exponent and mantissa, so that distance 1 is entry 1 and 0 is entry 0."""
HALF = (31 << MANTISSA) + 2
"""Entries of one half, up to the distance 2**31, to which the last ones round."""
TERMS = 24  # of the series of atanh, at arguments up to a third
LN2 = 0.6931471805599453


@cache
def gumbel_table(device: torch.device) -> Tensor:
    """Return `base` and `slope` of the upper half, then of the lower: float32 [2, 2 * HALF]."""
    entries = torch.arange(HALF - 1)
    mantissa = 1 + (entries % (1 << MANTISSA)).double() / (1 << MANTISSA)
    knots = mantissa * _power_of_two(entries >> MANTISSA)
    share = (torch.cat((torch.zeros(1).double(), knots)) + 0.5) / 2**32
    upper, lower = -_log(_minus_log_of_rest(share)), -_log(-_log(share))
    base = torch.cat((upper, lower))
    rise = torch.cat([torch.cat((half.diff(), half.new_zeros(1))) for half in (upper, lower)])
    rise[[0, HALF]] = 0.0  # nothing lies between the distances 0 and 1
    bits, power = torch.frexp(rise / (1 << REST_BITS))
    slope = (bits * (1 << SLOPE_BITS)).round() * _power_of_two(power - SLOPE_BITS)
    return torch.stack((base, slope)).float().to(device)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return 2**exponent as float64 [...], from its bits: `ldexp` calls a library's `pow`."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def _log(x: Tensor) -> Tensor:
    """Return log(x) of float64 x [...] above 0."""
    mantissa, exponent = torch.frexp(x)  # in [0.5, 1)
    return 2 * _atanh((mantissa - 1) / (mantissa + 1)) + exponent * LN2


def _minus_log_of_rest(x: Tensor) -> Tensor:
    """Return -log(1 - x) of float64 x [...] in (0, 0.5], also precise for small x."""
    return 2 * _atanh(x / (2 - x))


def _atanh(x: Tensor) -> Tensor:
    square, total = x * x, torch.zeros_like(x)
    for power in range(2 * TERMS - 1, 0, -2):
        total = total * square + 1 / power
    return total * x
