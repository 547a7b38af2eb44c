"""`eagle_aot::norm_rope_store`, everything between the products and the attention of a layer.

It is one node of a graph traced by torch.export, and writes the layer's caches. Lowered for a GPU
it becomes the kernel of `kernel.py`; on a CPU it runs the reference. Neither importing this module
nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.kv_int8 import head_dim_of, write_entries

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::norm_rope_store", mutates_args={"k_cache", "v_cache"})
def norm_rope_store(
    parts: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    row_slots: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """Store the keys and values of R rows and return their queries [1, R, heads, D].

    `parts` [S, 1, R, N] add up, in ascending order, to the concatenated queries, keys and values,
    rounded to `dtype`, that of the result: `heads` query heads and `kv_heads` key and value heads
    of D elements each. If N is too small for values, the keys before their norm are the values.
    Queries and keys are RMS-normalised with `q_weight` and `k_weight` [D], which are optional, and
    rotated by `cos` and signed `sin` float32 [1, R, 1, D]. With `norm_values` values are normalised
    without a weight.

    `k_cache`, `v_cache` [kv_heads, slots, D] of `dtype`, or INT8 entries. First the entries at
    `sources` int64 [B, M] of each sequence are copied to `targets` int64 [B, M], unless both are
    the same. Then each row is stored at `row_slots` int64 [R], R / B rows of each sequence in turn.
    A row's slot may be a source, but not a target, and a target may not be the source of another
    entry. Sequences share no slot except for padding, which is never read. B is 1 if nothing is
    moved.
    """
    from eagle_aot.triton_kernels.norm_rope_store.kernel import launch

    return launch(
        parts,
        angles=(cos, sin),
        weights=(q_weight, k_weight),
        caches=(k_cache, v_cache),
        row_slots=row_slots,
        moves=(sources, targets),
        heads=heads,
        norm_values=norm_values,
        eps=eps,
        dtype=dtype,
    )


@norm_rope_store.register_kernel("cpu")
def _cpu(
    parts: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    row_slots: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    return norm_rope_store_reference(
        parts, cos, sin, q_weight, k_weight, k_cache, v_cache, row_slots, sources, targets, heads,
        norm_values, eps, dtype,
    )  # fmt: skip


@norm_rope_store.register_fake
def _shape(
    parts: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    row_slots: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    return parts.new_empty((1, parts.shape[2], heads, head_dim_of(k_cache)), dtype=dtype)


def norm_rope_store_reference(
    parts: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    row_slots: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """Do what `norm_rope_store` does, rounding after each step as separate modules do.

    Returns queries [1, R, heads, D].
    """
    kv_heads, head_dim = k_cache.shape[0], head_dim_of(k_cache)
    product = parts.sum(0).to(dtype).unflatten(-1, (-1, head_dim))
    queries, keys = product[:, :, :heads], product[:, :, heads : heads + kv_heads]
    values = product[:, :, -kv_heads:]
    if norm_values:
        values = _rms_norm(values, None, eps)
    keys = _rotated(_rms_norm(keys, k_weight, eps) if k_weight is not None else keys, cos, sin)
    for cache, new in ((k_cache, keys), (v_cache, values)):
        if sources is not None and targets is not None:
            cache.index_copy_(1, targets.flatten(), cache.index_select(1, sources.flatten()))
        cache.index_copy_(1, row_slots, write_entries(new[0].transpose(0, 1), cache.dtype))
    normed = _rms_norm(queries, q_weight, eps) if q_weight is not None else queries
    return _rotated(normed, cos, sin).contiguous()


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.to(torch.float32)
    normed = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight.to(torch.float32)).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return (wide * cos + wide.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)
