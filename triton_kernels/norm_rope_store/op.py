"""`eagle_aot::norm_rope_store`, all between the products and the attention of a layer.

Traced by torch.export it is one node of the graph, which writes the layer's caches. Lowered for a
GPU it becomes the kernel of `kernel.py`; on a CPU it is the reference. Neither importing this
module nor tracing needs triton.
"""

from importlib.util import find_spec

from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.norm_rope_store.reference import norm_rope_store_reference

# `triton_op` warns where triton is not installed; there the operator has no kernel for GPUs.
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
    own: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
) -> Tensor:
    """Store the keys and values of R rows; returns their queries [1, R, heads, D].

    `parts` [S, 1, R, N] add up, in ascending order, to queries, keys and values side by side,
    rounded to the caches' dtype: heads of D each, `heads` of queries and `kv_heads` of the others.
    Where N has no room for values, they are the keys as they were before the norm. Queries and
    keys are RMS-normalised with `q_weight` and `k_weight` [D] where there are any, and rotated by
    `cos` and signed `sin` float32 [1, R, 1, D]; values are normalised without a weight if
    `norm_values`.

    `k_cache`, `v_cache` [kv_heads, slots, D]. First the entries at `sources` int64 [B, M] of each
    sequence are copied to `targets` int64 [B, M], nothing where both are the same; then each row is
    stored at `own` int64 [R], R / B rows of each sequence in turn. A slot may be both a source and
    a row's own; a target is neither a row's own nor another entry's source. Sequences share no
    slot but for padding, which nothing reads. Where nothing is moved B is 1.
    """
    from eagle_aot.triton_kernels.norm_rope_store.kernel import launch

    moves = sources, targets
    return launch(parts, (cos, sin), (q_weight, k_weight), (k_cache, v_cache), own, moves, heads,
                  norm_values, eps)  # fmt: skip


@norm_rope_store.register_kernel("cpu")
def _cpu(
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
    return norm_rope_store_reference(
        parts, cos, sin, q_weight, k_weight, k_cache, v_cache, own, sources, targets, heads,
        norm_values, eps,
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
    own: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    eps: float,
) -> Tensor:
    return k_cache.new_empty(1, parts.shape[2], heads, k_cache.shape[-1])
