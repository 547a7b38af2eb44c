"""Attention of rows over caches in eager PyTorch, row by row: the oracle, and the CPU path.

A row at position p reads the keys of its own path, in the order of their positions. The last of
them, its tail, lie in the slots that are named for it. The ones before, which all rows of its
sequence share, lie where their positions say: in a flat cache (`window` 0) in the slot of that
number, in a ring in the slot of that number modulo `ring`. With a window W it sees positions
p - W + 1 to p alone.
"""

from itertools import product

import torch
from torch import Tensor


def visible_slots(position: int, tail: Tensor, window: int, ring: int) -> Tensor:
    """Slots that a row reads, int64 [keys], in the order of their positions.

    `tail` int64 [TAIL] are the logical slots of the positions up to `position`, -1 for those before
    the text's beginning.
    """
    behind = position - tail.shape[0] + 1
    first = max(0, position - window + 1) if window else 0
    committed = torch.arange(first, max(first, behind), device=tail.device)
    stands_at = torch.arange(behind, position + 1, device=tail.device)
    logical = torch.cat([committed, tail[(tail >= 0) & (stands_at >= first)]])
    return torch.remainder(logical, ring) if ring else logical


def sdpa_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    scale: float,
    window: int,
    ring: int,
) -> Tensor:
    """Arguments and result as for `op.sdpa_splitk`; sums in float32, float64 for float64.

    Slots that a row does not see are not looked at: they may hold NaN.
    """
    out = q.new_zeros(q.shape)
    for b, t in product(*map(range, positions.shape)):
        position, cache = int(positions[b, t]), int(sequences[b])
        if position < 0:
            continue
        slots = visible_slots(position, tail[b, t], window, ring)
        out[b, t] = attend(q[b, t], k[:, cache, slots], v[:, cache, slots], scale)
    return out


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One row `q` [heads, D] over all of `keys`, `values` [kv_heads, n, D] -> [heads, D]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    grouped = q.to(wide).unflatten(0, (keys.shape[0], -1))
    weights = torch.softmax(grouped @ keys.to(wide).mT * scale, dim=-1)
    return (weights @ values.to(wide)).flatten(0, 1).to(q.dtype)
