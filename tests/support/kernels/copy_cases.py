"""Random caches and rows to copy."""

import torch
from torch import Tensor

from support.kernels.sdpa_cases import by_token

CASES = [(2, 64, 16, 1), (3, 40, 24, 17), (1, 300, 256, 100)]
"""Key/value heads, slots, head dimension and rows."""


def arguments(
    kv_heads: int, slots: int, head_dim: int, rows: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return keys and values [kv_heads, slots, head_dim], sources and targets int64 [rows].

    Both are in random order, and no slot is both a source and a target. Three heads or more lie
    together in memory.
    """
    generator = torch.Generator().manual_seed(slots)
    k, v = torch.randn(2, kv_heads, slots, head_dim, generator=generator).bfloat16().to(device)
    if kv_heads > 2:
        k, v = by_token(k), by_token(v)
    order = torch.randperm(slots, generator=generator)
    return k, v, order[:rows].to(device), order[rows : 2 * rows].to(device)


def copied(cache: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """Return the expected cache, copied entry by entry, in the shape of `cache`."""
    after = cache.clone()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        after[:, target] = cache[:, source]
    return after
