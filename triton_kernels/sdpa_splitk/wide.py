"""Launches the kernel of `wide.cu`: attention over flat caches of heads of 512 in bfloat16, on an
H100 or H200.

It takes the place of the first kernel of `kernel.py`. Importing this module needs triton.
"""

from collections.abc import Sequence
from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.cuda_source import Macros, as_text, described
from eagle_aot.triton_kernels.device import H100_SHARED
from eagle_aot.triton_kernels.sdpa_splitk.tiling import LOG2_E, Tiling

SOURCE = Path(__file__).with_name("wide.cu")


@triton.jit(do_not_specialize=["items", "of_text", "of_cache"])
def sdpa_wide_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    tail_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    items: tl.tensor,
    of_text: tl.tensor,
    of_cache: tl.tensor,
    CUDA: tl.constexpr,
) -> None:
    """Stand for the kernel of `wide.cu`: its arguments, and stores to all that it writes."""
    number = tl.inline_asm_elementwise(CUDA, "=r,r", [items], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(partial_ptr, number.to(partial_ptr.dtype.element_ty))
    tl.store(stats_ptr, number.to(stats_ptr.dtype.element_ty))


def launch(
    tensors: Sequence[Tensor],
    scale: float,
    strides: Sequence[int],
    tiles: Tiling,
    unless: int,
) -> None:
    """Launch the kernel with the tensors of `sdpa_splitk_kernel`: q [B, T, heads, 512], k and v
    [kv_heads, S, slots, 512], three of integers, and what it writes, partial [splits + 1,
    B * T * heads, 512] and stats [3, splits + 1, B * T * heads].

    `strides` are those of heads and of sequences, in entries, and of slots, in elements.
    """
    (batch, rows, heads, _), (kv_heads, *_, head_dim) = tensors[0].shape, tensors[1].shape
    of_head, of_cache, pitch = strides
    assert of_cache > 1 and pitch % 8 == 0, "arguments that are 1 are left out; 16 bytes are read"
    macros: Macros = {
        "HEADS": heads,
        "GROUP": heads // kv_heads,
        "SPLITS": tiles.splits,
        "CHUNK": tiles.chunk,
        "OF_HEAD": of_head * head_dim,
        "PITCH": pitch,
        "SCALE": scale * LOG2_E,
    }
    row_tiles = triton.cdiv(rows, tiles.row_tile // (heads // kv_heads))
    grid = row_tiles * kv_heads * (1 - unless), 1 + tiles.splits, batch
    # Products of sizes, which are not 1: torch would make a kernel without that argument.
    wrap_triton(sdpa_wide_kernel)[grid](
        *tensors,
        batch * rows * heads,
        rows * heads,
        of_cache,
        CUDA=described(SOURCE, as_text(macros), 32 * tiles.warps, H100_SHARED),
    )
