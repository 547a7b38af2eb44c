"""Caches of which rows are copied."""

import torch
from torch import Tensor

CASES = [(2, 64, 16, 1), (3, 40, 24, 17), (1, 300, 256, 100)]
"""Heads, slots, elements of a head, and rows."""


def copying(kv_heads: int, slots: int, head_dim: int, rows: int, device: str) -> tuple[Tensor, ...]:
    """Keys and values, sources in any order, and other slots as targets."""
    generator = torch.Generator().manual_seed(slots)
    k, v = torch.randn(2, kv_heads, slots, head_dim, generator=generator).bfloat16().to(device)
    places = torch.randperm(slots, generator=generator)
    return k, v, places[:rows].to(device), places[rows : 2 * rows].to(device)


def copied(cache: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """What is there behind it, entry by entry."""
    after = cache.clone()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        after[:, target] = cache[:, source]
    return after
