"""Attention of a few rows over a cache in eager PyTorch: the oracle, and the CPU path.

A cache holds keys and values of one sequence, [1, kv_heads, slots, D]:

- flat (`window` 0): the entry of position p lies in slot p, and a row at p sees positions 0 .. p;
- ring (`window` W, 2 W slots): it lies in slot p mod 2 W, and a row sees the last W positions up to
  its own.
"""

import torch
from torch import Tensor


def visible_slots(input_pos: Tensor, slots: int, window: int) -> Tensor:
    """Which of `slots` each row may look at: bool [M, slots] for `input_pos` int64 [M]."""
    slot = torch.arange(slots, device=input_pos.device)
    if not window:
        return slot <= input_pos.unsqueeze(-1)
    newest = input_pos.amax()
    stored = newest - torch.remainder(newest - slot, slots)
    age = input_pos.unsqueeze(-1) - stored
    return (age >= 0) & (age < window) & (stored >= 0)


def sdpa_reference(
    q: Tensor, k: Tensor, v: Tensor, input_pos: Tensor, scale: float, window: int
) -> Tensor:
    """Arguments and result as for `op.sdpa_splitk`; sums in float32, float64 for float64.

    Slots that no row sees are not looked at: they may hold NaN.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    visible = visible_slots(input_pos, k.shape[2], window)
    seen = visible.any(dim=0).unsqueeze(-1)
    keys, values = (torch.where(seen, x, 0.0).to(wide) for x in (k, v))
    grouped = q.transpose(1, 2).to(wide).unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    scores = (grouped @ keys.mT * scale).unflatten(2, (-1, q.shape[1]))
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    mixed = (weights.flatten(2, 3) @ values).unflatten(2, (-1, q.shape[1])).flatten(1, 2)
    return mixed.transpose(1, 2).to(q.dtype)
