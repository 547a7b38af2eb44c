"""Heads normalised, rotated and stored in eager PyTorch: the oracle, and the CPU path."""

import torch
from torch import Tensor


def norm_rope_store_reference(
    parts: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    own: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
) -> Tensor:
    """As `op.norm_rope_store`: every step rounds to the caches' dtype, as separate modules do."""
    kv_heads, _, head_dim = k_cache.shape
    product = parts.sum(0).to(k_cache.dtype).unflatten(-1, (-1, head_dim))
    queries, keys = product[:, :, :heads], product[:, :, heads : heads + kv_heads]
    values = product[:, :, -kv_heads:]
    if norm_values:
        values = _rms_norm(values, None, eps)
    keys = _rotated(_rms_norm(keys, k_weight, eps) if k_weight is not None else keys, cos, sin)
    for cache, new in ((k_cache, keys), (v_cache, values)):
        if sources is not None and targets is not None:
            cache.index_copy_(1, targets.flatten(), cache.index_select(1, sources.flatten()))
        cache.index_copy_(1, own, new[0].transpose(0, 1))
    normed = _rms_norm(queries, q_weight, eps) if q_weight is not None else queries
    return _rotated(normed, cos, sin).contiguous()


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    normed = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight.to(torch.float32)).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return (wide * cos + wide.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)
