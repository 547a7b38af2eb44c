"""Keys of noise: a counter-based generator, in integers that are the same everywhere."""

import torch
from torch import Tensor

FACTORS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF


def philox(counter: Tensor, seed: int) -> Tensor:
    """Philox4x32-10 (Salmon et al., 2011) of counters int64 [N, 4] of 32 bits each, under a key of
    64 bits: int64 [N, 4], 32 random bits each."""
    c0, c1, c2, c3 = counter.unbind(1)
    k0, k1 = seed & MASK, seed >> 32 & MASK
    for _ in range(ROUNDS):
        low, high = c0 * FACTORS[0], c2 * FACTORS[1]  # whose 64 bits wrap as they should
        c0, c1 = (high >> 32 & MASK) ^ c1 ^ k0, high & MASK
        c2, c3 = (low >> 32 & MASK) ^ c3 ^ k1, low & MASK
        k0, k1 = k0 + WEYL[0] & MASK, k1 + WEYL[1] & MASK
    return torch.stack((c0, c1, c2, c3), dim=1)


def noise_keys(seed: int, first: int, end: int) -> Tensor:
    """Of tokens at positions `first` to `end`: int32 [end - first, 2], 64 bits each."""
    counter = torch.zeros(end - first, 4, dtype=torch.int64)
    counter[:, 0] = torch.arange(first, end)
    bits = philox(counter, seed)[:, :2]
    return torch.where(bits >> 31 > 0, bits - (1 << 32), bits).int()
