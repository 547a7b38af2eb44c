"""GGUF's 4-bit block types, read into the canonical layout.

Q4_0, 18 bytes for 32 columns: a scale d (float16), then the codes of columns 0..15 in low and of
16..31 in high nibbles; `w = d (code - 8)`.
Q4_1, 20 bytes for 32 columns: a scale d and a minimum m (float16), then codes like those of Q4_0;
`w = d code + m`, so its zero point is -m / d.
Q4_K, 144 bytes for 256 columns: d and dmin (float16), a 6-bit scale and a 6-bit minimum for each of
eight groups of 32 in 12 bytes, then four runs of 32 bytes, each with one group in its low nibbles
and the next in its high ones; `w = d scale code - dmin minimum`, so its zero point is the minimum's
share of the scale.
Zero points of Q4_1 and Q4_K are fractions; they alone are rounded here (to float32).
Source: llama.cpp `ggml-common.h`, `ggml-quants.c`; gguf 0.19 `quants.py`.
"""

import torch
from torch import Tensor

from eagle_aot.targets.int4.weight import Int4Weight, bytes_of_codes

Q4_0_BYTES, Q4_0_ZERO = 18, 8.0
Q4_1_BYTES = 20
Q4_K_BYTES = 144


def read_q4_0(rows: Tensor) -> Int4Weight:
    """Read blocks uint8 [N, K / 32 * 18] as a symmetric weight [N, K] in groups of 32."""
    blocks = rows.unflatten(1, (-1, Q4_0_BYTES))
    scale = _halves(blocks[..., :2]).squeeze(-1).t().contiguous()
    qdata = bytes_of_codes(_nibbles(blocks[..., 2:])).flatten(1)
    return Int4Weight(qdata, scale, torch.full_like(scale, Q4_0_ZERO))


def read_q4_1(rows: Tensor) -> Int4Weight:
    """Read blocks uint8 [N, K / 32 * 20] as an asymmetric weight [N, K] in groups of 32."""
    blocks = rows.unflatten(1, (-1, Q4_1_BYTES))
    d, m = _halves(blocks[..., :4]).unbind(-1)
    return _with_minima(d, -m, _nibbles(blocks[..., 4:]))


def read_q4_k(rows: Tensor) -> Int4Weight:
    """Read blocks uint8 [N, K / 256 * 144] as an asymmetric weight [N, K] in groups of 32."""
    blocks = rows.unflatten(1, (-1, Q4_K_BYTES))
    d, d_min = _halves(blocks[..., :4]).unsqueeze(-2).unbind(-1)
    scales, minima = _six_bits(blocks[..., 4:16])
    scale, minimum = d * scales, d_min * minima
    runs = blocks[..., 16:].unflatten(-1, (4, 32))
    codes = torch.stack((runs & 0xF, runs >> 4), dim=-2).flatten(-3, -2)
    return _with_minima(scale.flatten(1), minimum.flatten(1), codes.flatten(1, -2))


def _with_minima(scale: Tensor, minimum: Tensor, codes: Tensor) -> Int4Weight:
    """Make the weight `scale * code - minimum`: scale, minimum [N, groups], codes [N, groups, 32].

    A group with scale 0 is -minimum everywhere: code 0, zero point 1 and scale `minimum`.
    """
    is_constant = scale == 0
    zero = torch.where(is_constant, 1.0, minimum / scale)
    scale = torch.where(is_constant, minimum, scale)
    codes = codes.masked_fill(is_constant.unsqueeze(-1), 0)
    qdata = bytes_of_codes(codes).flatten(1)
    return Int4Weight(qdata, scale.t().contiguous(), zero.t().contiguous())


def _nibbles(quants: Tensor) -> Tensor:
    """Unpack bytes [..., 16] to codes [..., 32]: first all low nibbles, then all high ones."""
    return torch.cat((quants & 0xF, quants >> 4), dim=-1)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack bytes [..., 12] to scales and minima, float32 [..., 8].

    The first four scales and minima are the low six bits of bytes 0..3 and 4..7. The other four
    have their low four bits in the low and high nibbles of bytes 8..11 and their high two bits in
    the high two bits of bytes 0..3 and 4..7.
    """
    first, second, third = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 0x3F, (third & 0xF) | ((first >> 6) << 4)), dim=-1)
    minima = torch.cat((second & 0x3F, (third >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales.float(), minima.float()


def _halves(pairs: Tensor) -> Tensor:
    """View bytes [..., 2 n] as float16 and convert them to float32 [..., n]."""
    return pairs.contiguous().view(torch.float16).float()
