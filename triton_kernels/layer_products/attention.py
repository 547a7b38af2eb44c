"""Launches the kernel of `kernel.cu` with attention after its products.

Importing this module needs triton.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.layer_products.kernel import described, prepare
from eagle_aot.triton_kernels.layer_products.op import ROWS, SETS, WARPS
from eagle_aot.triton_kernels.norm_rope_store import kernel as norm_rope_store
from eagle_aot.triton_kernels.row_tiling import one_if_positive
from eagle_aot.triton_kernels.sdpa_splitk import kernel as sdpa_splitk


@triton.jit(do_not_specialize=["rows", "attends"])
def layer_products_kernel(
    attended_ptr: tl.tensor,
    stream_ptr: tl.tensor,
    o_codes_ptr: tl.tensor,
    o_scales_ptr: tl.tensor,
    gate_codes_ptr: tl.tensor,
    gate_scales_ptr: tl.tensor,
    down_codes_ptr: tl.tensor,
    down_scales_ptr: tl.tensor,
    qkv_codes_ptr: tl.tensor,
    qkv_scales_ptr: tl.tensor,
    post1_ptr: tl.tensor,
    next1_ptr: tl.tensor,
    post2_ptr: tl.tensor,
    scale2_ptr: tl.tensor,
    next2_ptr: tl.tensor,
    exchanged_ptr: tl.tensor,
    emptied_ptr: tl.tensor,
    stream1_ptr: tl.tensor,
    stream2_ptr: tl.tensor,
    normed2_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    attended2_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    q_weight_ptr: tl.tensor,
    k_weight_ptr: tl.tensor,
    row_slots_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    tail_ptr: tl.tensor,
    attends: tl.tensor,
    CUDA: tl.constexpr,
) -> None:
    """Stand for the kernel with attention, as `kernel.layer_products_kernel` for the other."""
    number = tl.inline_asm_elementwise(CUDA, "=r,r", [rows], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(emptied_ptr, number)
    tl.store(stream1_ptr, number.to(stream1_ptr.dtype.element_ty))
    tl.store(stream2_ptr, number.to(stream2_ptr.dtype.element_ty))
    tl.store(normed2_ptr, number.to(normed2_ptr.dtype.element_ty))
    tl.store(out_ptr, number.to(out_ptr.dtype.element_ty))
    tl.store(k_ptr, number.to(k_ptr.dtype.element_ty))
    tl.store(v_ptr, number.to(v_ptr.dtype.element_ty))
    tl.store(attended2_ptr, number.to(attended2_ptr.dtype.element_ty))


def launch(
    layer: tuple[Any, ...], store: tuple[Any, ...], attend: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch the kernels of `op.layer_attention`, with the arguments of `layer_products`, those of
    `norm_rope_store` after the first, and those of `sdpa_splitk` after the caches.

    For at most eight rows of one text the grids of all other kernels are empty. Returns [1, R,
    heads * D], [1, R, H] twice, and what the next one exchanges.
    """
    (parts, stream, normed, emptied), operands, sizes = prepare(*layer)
    cos, sin, q_weight, k_weight, k_cache, v_cache, row_slots, sources, targets = store[:9]
    heads, norm_values, head_eps = store[9:]
    positions, sequences, tail, slots, scale, window, ring = attend
    multiprocessors, (batch, _), rows = layer[-1], positions.shape, stream.shape[-2]
    few = one_if_positive(ROWS + 1 - rows)
    attends = few * one_if_positive(2 - batch)
    attended = stream.new_empty((*positions.shape, heads, k_cache.shape[-1]))
    k, v = (cache.unflatten(1, (-1, slots)) for cache in (k_cache, v_cache))
    of_head, pitch, _ = k_cache.stride()
    wrap_triton(layer_products_kernel)[(multiprocessors * few,)](
        *operands,
        rows,
        k_cache,
        v_cache,
        attended,
        cos.contiguous(),
        sin.contiguous(),
        q_weight,
        k_weight,
        row_slots.contiguous(),
        row_slots if sources is None else sources.contiguous(),
        row_slots if targets is None else targets.contiguous(),
        positions.contiguous(),
        sequences.contiguous(),
        tail.contiguous(),
        attends,
        CUDA=described(
            {
                **sizes,
                "ATTENDS": 1,
                "HEADS": heads,
                "GROUP": heads // k.shape[0],
                "WINDOW": window,
                "RING_SLOTS": ring,
                "SLOTS": slots,
                "OF_HEAD": of_head,
                "KEY_PITCH": pitch,
                "SCALE": scale * sdpa_splitk.LOG2_E,
                "HEAD_EPS": head_eps,
                "NORM_VALUES": int(norm_values),
                "MOVES": 0 if sources is None else sources.shape[1],
            }
        ),
        num_warps=SETS * WARPS,
    )
    q = norm_rope_store.launch(
        parts, (cos, sin), (q_weight, k_weight), (k_cache, v_cache), row_slots, (sources, targets),
        heads, norm_values, head_eps, k_cache.dtype, attends,
    )  # fmt: skip
    by_text = q.view(attended.shape)
    sdpa_splitk.launch(
        by_text, k, v, positions, sequences, tail, scale, window, ring, out=attended, unless=attends
    )
    return attended.view(1, rows, -1), stream, normed, emptied
