"""Gumbel noise in eager PyTorch, with the same bits as the kernel; also the CPU path.

It works in place, on a few rows at a time.
"""

import torch
from torch import Tensor

from eagle_aot.triton_kernels.gumbel_argmax.table import FIRST, HALF, REST_BITS, gumbel_table

SHIFTS = 17, 11, 15
FACTORS = 0xED5AD4BB, 0xAC4C1B51, 0x31848BAB
"""Constants of the integer hash triple32 (C. Wellons); the key enters around its first round."""

LOGITS_AT_ONCE = 1 << 16
"""Few enough that intermediate results stay in a core's cache."""
Word = int | Tensor


def gumbel_reference(ids: Tensor, key: tuple[Word, Word]) -> Tensor:
    """Return the noise of tokens `ids` int32 [V] for a key of two 32-bit words: float32 [V].

    For R keys, int32 [R, 1] each, the noise is float32 [R, V].
    """
    return _noise(_bits(ids, key))


def perturbed_reference(
    logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None = None
) -> Tensor:
    """Return what `perturbed` returns, float32 [R, V]."""
    rows, vocab = logits.shape
    if ids is None:
        ids = torch.arange(vocab, dtype=torch.int32, device=logits.device)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    for part in torch.arange(rows).split(max(LOGITS_AT_ONCE // vocab, 1)):
        rows_at_once = slice(int(part[0]), int(part[-1]) + 1)
        _perturb(
            out[rows_at_once],
            logits[rows_at_once],
            scale[rows_at_once].unsqueeze(1),
            keys[rows_at_once],
            ids,
        )
    return out


def _perturb(out: Tensor, logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor) -> None:
    if not scale.any():
        out.copy_(logits)
        return
    torch.mul(logits.float(), scale, out=out)
    out += gumbel_reference(ids, (keys[:, :1], keys[:, 1:]))
    if len(out) > 1:
        torch.where(scale > 0, out, logits.float(), out=out)


def _bits(ids: Tensor, key: tuple[Word, Word]) -> Tensor:
    """Return 32 random bits per token, int32 in the shape of `ids`."""
    x = ids ^ key[0]
    for shift, factor, word in zip(SHIFTS, FACTORS, (key[1], None, None), strict=True):
        high = x >> shift
        high &= (1 << (32 - shift)) - 1
        x ^= high
        x *= _signed(factor)
        if word is not None:
            x += word
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
    flat = entry.flatten()
    noise *= slope.index_select(0, flat).view_as(noise)
    noise += base.index_select(0, flat).view_as(noise)
    return noise


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits
