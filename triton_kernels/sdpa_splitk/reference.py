"""Attention of rows over caches in eager PyTorch, row by row: the reference and the CPU path.

A row at position p reads the keys of its own path, in order of position. The last keys, its tail,
are in slots that are given for the row. The keys before, which all rows of the sequence share, are
in the slots of their positions: slot = position in a flat cache (`window` 0), position modulo
`ring` in a ring. With a window W the row sees only positions p - W + 1 to p.
"""

from itertools import product

import torch
from torch import Tensor

from eagle_aot.triton_kernels.kv_int8 import read_entries


def visible_slots(position: int, tail: Tensor, window: int, ring: int) -> Tensor:
    """Return the slots that a row reads, int64 [keys], in order of position.

    `tail` int64 [TAIL] are the logical slots of the positions up to `position`, -1 before the start
    of the sequence.
    """
    tail_start = position - tail.shape[0] + 1
    first = max(0, position - window + 1) if window else 0
    committed = torch.arange(first, max(first, tail_start), device=tail.device)
    tail_positions = torch.arange(tail_start, position + 1, device=tail.device)
    logical = torch.cat([committed, tail[(tail >= 0) & (tail_positions >= first)]])
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
    """Compute `op.sdpa_splitk`, [B, T, heads, D]; sums are float32, or float64 for float64.

    Slots that a row does not see are not read; they may hold NaN.
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
    """Attend with one row `q` [heads, D] to all `keys`, `values` [kv_heads, n, D], which may be
    INT8 entries: [heads, D]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    grouped = q.to(wide).unflatten(0, (keys.shape[0], -1))
    weights = torch.softmax(grouped @ read_entries(keys, wide).mT * scale, dim=-1)
    return (weights @ read_entries(values, wide)).flatten(0, 1).to(q.dtype)
