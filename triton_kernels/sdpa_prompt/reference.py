"""Attention of a prompt's rows in eager PyTorch: the oracle, and the CPU path."""

import torch
from torch import Tensor


def sdpa_prompt_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_pos: Tensor,
    sequence: Tensor,
    scale: float,
    window: int,
    ring: int,
    last_visible: Tensor | None = None,
) -> Tensor:
    """Arguments and result as for `op.sdpa_prompt`; sums in float32, float64 for float64.

    Slots that no row sees are not looked at: they may hold NaN.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    seen_to = input_pos if last_visible is None else torch.maximum(input_pos, last_visible)
    first, last = int(input_pos[0]), int(seen_to.max())
    position = torch.arange(max(0, first - window + 1) if window else 0, last + 1, device=q.device)
    slots = torch.remainder(position, ring) if ring else position
    keys, values = (cache[:, int(sequence), slots].to(wide) for cache in (k, v))
    age = input_pos.unsqueeze(1) - position
    visible = (position <= seen_to.unsqueeze(1)) & ((age < window) if window else True)
    rows = q[0].transpose(0, 1).unflatten(0, (k.shape[0], -1)).to(wide)  # [kv_heads, group, T, D]
    scores = rows @ keys.unsqueeze(1).mT * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    attended = weights @ values.unsqueeze(1)
    return attended.flatten(0, 1).transpose(0, 1).unsqueeze(0).to(q.dtype).contiguous()
