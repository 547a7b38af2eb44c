"""Copies rows of a cache on a GPU. Importing this module needs triton."""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

TILE = 16
"""Rows of one head per program."""

WARPS = 4


@triton.jit(do_not_specialize=["rows"])
def copy_rows_kernel(
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    rows: tl.tensor,
    OF_HEAD: tl.constexpr,
    PITCH: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Copy keys and values of TILE rows of one head; WIDTH >= D is a power of two."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows)[:, None] & (column < D)
    source = tl.load(sources_ptr + row, mask=row < rows, other=0)[:, None] * PITCH + column
    target = tl.load(targets_ptr + row, mask=row < rows, other=0)[:, None] * PITCH + column
    head = tl.program_id(1).to(tl.int64) * OF_HEAD
    k = tl.load(k_ptr + head + source, mask=inside)
    v = tl.load(v_ptr + head + source, mask=inside)
    tl.store(k_ptr + head + target, k, mask=inside)
    tl.store(v_ptr + head + target, v, mask=inside)


def launch(k_cache: Tensor, v_cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Launch the kernel; arguments are those of `copy_rows`: caches [kv_heads, slots, D]."""
    kv_heads, _, head_dim = k_cache.shape
    of_head, pitch, _ = k_cache.stride()
    rows = sources.shape[0]
    wrap_triton(copy_rows_kernel)[(triton.cdiv(rows, TILE), kv_heads)](
        k_cache,
        v_cache,
        sources.contiguous(),
        targets.contiguous(),
        rows,
        OF_HEAD=of_head,
        PITCH=pitch,
        D=head_dim,
        TILE=TILE,
        WIDTH=triton.next_power_of_2(head_dim),
        num_warps=WARPS,
    )
