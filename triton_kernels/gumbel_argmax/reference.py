"""Noise and choice in eager PyTorch: the kernel's twin bit for bit, and the CPU path.

Row by row and in place, so that a row's intermediates stay in a core's cache.
"""

import torch
from torch import Tensor

from eagle_aot.triton_kernels.gumbel_argmax.table import (
    FIRST,
    HALF,
    REST_BITS,
    gumbel_table,
)

SHIFTS = 17, 11, 15
FACTORS = 0xED5AD4BB, 0xAC4C1B51, 0x31848BAB
"""Of the integer hash triple32 (C. Wellons); around its first round the key comes in."""


def gumbel_reference(ids: Tensor, key: tuple[int, int]) -> Tensor:
    """The noise of tokens int32 [V] under a key of two 32-bit integers: float32 [V]."""
    return _noise(_bits(ids, key))


def perturbed_reference(
    logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None = None
) -> Tensor:
    """As `op.perturbed`."""
    if ids is None:
        ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    rows = zip(out, logits, scale.tolist(), keys.tolist(), strict=True)
    for into, row, factor, key in rows:
        if factor:
            torch.mul(row.float(), factor, out=into)
            into += gumbel_reference(ids, tuple(key))
        else:
            into.copy_(row)
    return out


def _bits(ids: Tensor, key: tuple[int, int]) -> Tensor:
    """32 random bits of each, as int32."""
    x = ids ^ key[0]
    for shift, factor, more in zip(SHIFTS, FACTORS, (key[1], 0, 0), strict=True):
        high = x >> shift
        high &= (1 << (32 - shift)) - 1
        x ^= high
        x *= _signed(factor)
        if more:
            x += more
    return x


def _noise(bits: Tensor) -> Tensor:
    base, slope = gumbel_table(bits.device)
    sign = bits >> 31
    distance = (bits ^ sign).float().view(torch.int32)
    entry = distance >> REST_BITS
    entry -= FIRST
    entry.clamp_(min=0)
    sign &= HALF
    entry += sign
    distance &= (1 << REST_BITS) - 1
    noise = distance.float()
    noise *= slope.index_select(0, entry)
    noise += base.index_select(0, entry)
    return noise


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits
