"""Grouped-query attention over a cache."""

import torch
from torch import Tensor

from eagle_aot.targets.decoder.norms import cast


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Softmax attention in float32 of one sequence.

    q [1, heads, T, D]; k, v [1, kv_heads, S, D] with heads a multiple of kv_heads (query head h
    reads kv head h // group); mask [T, S] additive. Returns [1, heads, T, D] in q's dtype.

    Each row is reduced over the whole buffer in one fixed order, so its bits depend neither on
    how many rows are computed with it nor on how much of the cache is filled.
    """
    _, heads, rows, head_dim = q.shape
    kv_heads, slots = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped_q = q.reshape(kv_heads, group * rows, head_dim)
    if scale != 1.0:
        grouped_q = grouped_q * scale
    scores = cast(torch.bmm(grouped_q, k[0].transpose(1, 2)), torch.float32)
    scores = scores.reshape(kv_heads, group, rows, slots) + mask
    weights = cast(torch.softmax(scores, dim=-1), v.dtype)
    mixed = torch.bmm(weights.reshape(kv_heads, group * rows, slots), v[0])
    return mixed.unflatten(1, (group, rows)).flatten(0, 1).unsqueeze(0)
