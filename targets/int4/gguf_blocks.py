"""GGUF's two 4-bit block types, read into the canonical layout.

Q4_0, 18 bytes for 32 columns: a scale d (float16), then the codes of columns 0..15 in low and of
16..31 in high nibbles; `w = d (code - 8)`.
Q4_K, 144 bytes for 256 columns: d and dmin (float16), a 6-bit scale and a 6-bit minimum for each of
eight groups of 32 in 12 bytes, then four runs of 32 bytes, each with one group in its low nibbles
and the next in its high ones; `w = d scale code - dmin minimum`, so its zero point is the minimum's
share of the scale: a fraction, and the only value here that is rounded (to float32).
Source: llama.cpp `ggml-common.h`, `ggml-quants.c`; gguf 0.19 `quants.py`.
"""

import torch
from torch import Tensor

from eagle_aot.targets.int4.nibbles import bytes_of_codes
from eagle_aot.targets.int4.weight import Int4Weight

Q4_0_BYTES, Q4_0_ZERO = 18, 8.0
Q4_K_BYTES = 144


def read_q4_0(rows: Tensor) -> Int4Weight:
    """uint8 [N, K / 32 * 18] -> [N, K], symmetric, groups of 32."""
    blocks = rows.unflatten(1, (-1, Q4_0_BYTES))
    scale = _halves(blocks[..., :2]).squeeze(-1).t().contiguous()
    quants = blocks[..., 2:]
    codes = torch.cat((quants & 0xF, quants >> 4), dim=-1)
    qdata = bytes_of_codes(codes).flatten(1)
    return Int4Weight(qdata, scale, torch.full_like(scale, Q4_0_ZERO))


def read_q4_k(rows: Tensor) -> Int4Weight:
    """uint8 [N, K / 256 * 144] -> [N, K], asymmetric, groups of 32."""
    blocks = rows.unflatten(1, (-1, Q4_K_BYTES))
    d, d_min = _halves(blocks[..., :4]).unsqueeze(-2).unbind(-1)
    scales, minima = _six_bits(blocks[..., 4:16])
    scale, minimum = d * scales, d_min * minima
    runs = blocks[..., 16:].unflatten(-1, (4, 32))
    codes = torch.stack((runs & 0xF, runs >> 4), dim=-2).flatten(-3, -2)
    scale, zero, codes = _without_zero_scales(scale, minimum, codes)
    per_row = (x.flatten(1).t().contiguous() for x in (scale, zero))
    return Int4Weight(bytes_of_codes(codes).flatten(1), *per_row)


def _without_zero_scales(
    scale: Tensor, minimum: Tensor, codes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale, zero point and codes; a group that is -minimum throughout is one step below zero."""
    constant = scale == 0
    zero = torch.where(constant, 1.0, minimum / scale)
    codes = codes.masked_fill(constant.unsqueeze(-1), 0)
    return torch.where(constant, minimum, scale), zero, codes


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """[..., 12] -> scales and minima [..., 8].

    The first four of each are the low six bits of bytes 0..3 and 4..7. Of the others the low four
    bits are the nibbles of bytes 8..11, the high two what bytes 0..3 and 4..7 have left.
    """
    first, second, third = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 0x3F, (third & 0xF) | ((first >> 6) << 4)), dim=-1)
    minima = torch.cat((second & 0x3F, (third >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales.float(), minima.float()


def _halves(pairs: Tensor) -> Tensor:
    """Bytes of float16 -> float32."""
    return pairs.contiguous().view(torch.float16).float()
