"""INT4 codes to and from the bytes and words that files hold."""

import torch
from torch import Tensor


def codes_of_words(words: Tensor) -> Tensor:
    """int32 [..., W] -> uint8 codes [..., 8 W], each word's lowest nibble first."""
    return codes_of_bytes(bytes_of_words(words))


def bytes_of_words(words: Tensor) -> Tensor:
    """int32 [..., W] -> uint8 [..., 4 W], each word's lowest byte first."""
    flat = words.flatten()  # a transpose of one column calls itself contiguous, but has no view
    return flat.view(torch.uint8).view(*words.shape[:-1], -1)


def codes_of_bytes(pairs: Tensor) -> Tensor:
    """uint8 [..., B] -> uint8 codes [..., 2 B], each byte's low nibble first."""
    return torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(-2)


def bytes_of_codes(codes: Tensor) -> Tensor:
    """uint8 codes [..., K] -> uint8 [..., K / 2], even k in the low nibble: canonical `qdata`."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)
