"""Grouped-query attention over a cache, in operators that every backend has.

A row is reduced over the whole buffer in one fixed order, so its bits depend neither on how many
rows are computed with it nor on how much of the cache is filled. In shapes, B counts sequences, T
rows, D tail slots, and G query heads per key/value head.
"""

import torch
from torch import Tensor

from eagle_aot.targets.decoder.norms import cast

# Added to a score that may not be attended. Finite, because -inf minus -inf is NaN in some
# vectorised softmax kernels; exp() of it is exactly 0 in every float dtype.
MASKED = -1.0e9


def additive(visible: Tensor) -> Tensor:
    """Turn a bool mask [...] into a float32 mask of the same shape, to be added to scores."""
    return torch.where(visible, 0.0, MASKED)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute softmax attention, in float32, for the rows of one sequence.

    q [1, T, heads, head_dim]; k, v [kv_heads, slots, head_dim], where heads is a multiple of
    kv_heads and query head h reads kv head h // G; mask [T, 1, slots], additive. Returns a tensor
    of q's shape and dtype.
    """
    kv_heads, slots, rows = k.shape[0], k.shape[1], q.shape[1]
    group = q.shape[2] // kv_heads
    grouped = _by_kv_head(q, kv_heads, scale)
    scores = torch.bmm(grouped.flatten(1, 2), k.transpose(1, 2)).view(kv_heads, rows, group, slots)
    weights = cast(torch.softmax(cast(scores, torch.float32) + mask, dim=-1), v.dtype)
    return _by_row(torch.bmm(weights.flatten(1, 2), v), q, kv_heads)


def attend_with_tail(
    q: Tensor,
    positions: Tensor,
    committed: tuple[Tensor, Tensor],
    tail: tuple[Tensor, Tensor],
    masks: tuple[Tensor, Tensor],
    kv_heads: int,
    scale: float,
) -> Tensor:
    """Compute softmax attention, in float32, over committed slots and each row's own tail.

    q [1, B * T, heads, head_dim] at positions [B, T]; committed k and v
    [kv_heads * B, slots, head_dim]; tail k and v [kv_heads * B * T, D, head_dim]; masks
    [B * T, 1, slots] and [B * T, 1, D], additive. Returns a tensor of q's shape and dtype.
    """
    (k, v), (tail_k, tail_v), (mask, tail_mask) = committed, tail, masks
    batch, rows = positions.shape
    slots, depth = k.shape[1], tail_k.shape[1]
    _, count, heads, head_dim = q.shape  # count is batch * rows
    group = heads // kv_heads
    grouped = _by_kv_head(q, kv_heads, scale)
    by_sequence = grouped.view(kv_heads * batch, rows * group, head_dim)
    by_row = grouped.view(kv_heads * count, group, head_dim)
    scores = torch.bmm(by_sequence, k.transpose(1, 2)).view(kv_heads, count, group, slots)
    tail_scores = torch.bmm(by_row, tail_k.transpose(1, 2)).view(kv_heads, count, group, depth)
    masked = cast(scores, torch.float32) + mask, cast(tail_scores, torch.float32) + tail_mask
    weights = cast(torch.softmax(torch.cat(masked, dim=-1), dim=-1), v.dtype)
    committed_weights = weights[..., :slots].reshape(kv_heads * batch, rows * group, slots)
    tail_weights = weights[..., slots:].reshape(kv_heads * count, group, depth)
    mixed = torch.bmm(committed_weights, v).view(kv_heads * count, group, head_dim)
    return _by_row(mixed + torch.bmm(tail_weights, tail_v), q, kv_heads)


def _by_kv_head(q: Tensor, kv_heads: int, scale: float) -> Tensor:
    """Scale [1, N, heads, head_dim] and group it: [kv_heads, N, G, head_dim], contiguous."""
    _, rows, heads, head_dim = q.shape
    grouped = q.view(rows, kv_heads, heads // kv_heads, head_dim).transpose(0, 1)
    return (grouped if scale == 1.0 else grouped * scale).contiguous()


def _by_row(mixed: Tensor, q: Tensor, kv_heads: int) -> Tensor:
    """Reorder kv_heads * N * G vectors into the shape of `q` [1, N, heads, head_dim]."""
    _, rows, heads, head_dim = q.shape
    by_kv_head = mixed.view(kv_heads, rows, heads // kv_heads, head_dim)
    return by_kv_head.transpose(0, 1).reshape(1, rows, heads, head_dim)
