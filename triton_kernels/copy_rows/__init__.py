"""`eagle_aot::copy_rows`, which copies rows of a layer's caches, keys and values in one kernel.

With stock operators the compiler would copy all caches: it merges the layers' writes into one
kernel and tunes that on memory of its own. Neither importing this package nor tracing needs triton.
"""

from importlib.util import find_spec

from torch import Tensor
from torch.library import custom_op, triton_op

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::copy_rows", mutates_args={"k_cache", "v_cache"})
def copy_rows(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy the slots `sources` int64 [T] of `k_cache`, `v_cache` [kv_heads, slots, D] to `targets`.

    Slots in `targets` int64 [T] are all different, and none of them is a source.
    """
    from eagle_aot.triton_kernels.copy_rows.kernel import launch

    launch(k_cache, v_cache, sources, targets)


@copy_rows.register_kernel("cpu")
def copy_rows_reference(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy slots as `copy_rows` does, in stock operators; `sources`, `targets` int64 [T]."""
    for cache in (k_cache, v_cache):
        cache.index_copy_(1, targets, cache.index_select(1, sources))


@copy_rows.register_fake
def _nothing(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    return None
