"""Launches the kernel of `kernel.cu`, for which `layer_products_kernel` stands.

Importing this module needs triton.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels import cuda_source
from eagle_aot.triton_kernels.int4_gemm import small_m
from eagle_aot.triton_kernels.layer_products.macros import packed_shape, shapes_of
from eagle_aot.triton_kernels.layer_products.op import ROWS, SETS, SHARED, WARPS, composed
from eagle_aot.triton_kernels.residual_norm import kernel as residual_norm
from eagle_aot.triton_kernels.row_tiling import one_if_positive

SOURCE = Path(__file__).with_name("kernel.cu")
LAUNCHED_WARPS = SETS * (WARPS + 1)


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
    of_o: tl.tensor,
    of_qkv: tl.tensor,
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
    """Stand for the kernel of `kernel.cu`: its arguments, and stores to all that others may read.

    CUDA is no instruction, so nothing assembles this: see `cuda_source.py`. Torch could copy what
    is exchanged if it seemed to be stored to."""
    number = tl.inline_asm_elementwise(CUDA, "=r,r", [rows], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(emptied_ptr, number)
    tl.store(stream1_ptr, number.to(stream1_ptr.dtype.element_ty))
    tl.store(stream2_ptr, number.to(stream2_ptr.dtype.element_ty))
    tl.store(normed2_ptr, number.to(normed2_ptr.dtype.element_ty))
    tl.store(out_ptr, number.to(out_ptr.dtype.element_ty))
    tl.store(k_ptr, number.to(k_ptr.dtype.element_ty))
    tl.store(v_ptr, number.to(v_ptr.dtype.element_ty))
    tl.store(attended2_ptr, number.to(attended2_ptr.dtype.element_ty))


def launch(*layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch the kernels; arguments and results are those of `op.layer_products`, [S, 1, R, N],
    twice [1, R, H] and what the next one exchanges.

    For every number of rows either this kernel's grid is empty or those of all others are.
    """
    results, operands = prepare(*layer)
    stream, *_, multiprocessors, macros = layer[1:]
    entries = [stream.new_empty(1) for _ in range(3)]  # nothing attends
    angles, integers = (stream.new_empty(1, dtype=kind) for kind in (torch.float32, torch.int64))
    few = one_if_positive(ROWS + 1 - stream.shape[-2])
    not_one = 3 - few  # a symbol, as where heads attend: for a number torch makes another kernel
    nothing = *entries, angles, angles, stream, stream, *(integers for _ in range(6)), not_one
    wrap_triton(layer_products_kernel)[(multiprocessors * few,)](
        *operands, *nothing, CUDA=described(macros)
    )
    return results


def prepare(
    attended: Tensor,
    stream: Tensor,
    exchanged: Tensor,
    codes: list[Tensor],
    scales: list[Tensor],
    splits: list[int],
    post_weights: list[Tensor],
    next_weights: list[Tensor],
    scale: Tensor | None,
    activation: str,
    eps: list[float],
    multiprocessors: int,
    macros: str,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], list[Any]]:
    """Launch what more rows need, and return the results of `launch`, [S, 1, R, N], [1, R, H] twice
    and what is exchanged; and the arguments of the CUDA kernel before those of attention."""
    posts = post_weights or next_weights
    attended, stream = attended.contiguous(), stream.contiguous()
    kernels = partial(small_m.launch, above=ROWS), partial(residual_norm.launch, above=ROWS)
    out, stream2, normed2, stream1, _, _ = composed(
        *kernels, attended, stream, codes, scales, splits, post_weights, next_weights, scale,
        activation, eps,
    )  # fmt: skip
    emptied = torch.empty_like(exchanged)
    operands = [
        attended,
        stream,
        *[tensor for pair in zip(codes, scales, strict=True) for tensor in pair],
        *(codes[2], scales[2])[: 2 * (4 - len(codes))],  # not read
        posts[0],
        next_weights[0],
        posts[1],
        next_weights[1] if scale is None else scale,
        next_weights[1],
        exchanged,
        emptied,
        stream1,
        stream2,
        normed2,
        out,
        stream.shape[-2],
        *(packed_shape(*shape) for shape in shapes_of(codes, splits)),
    ]
    return (out, stream2, normed2, emptied), operands


def described(macros: str) -> str:
    """Return what stands in the kernel's code for `kernel.cu` with `macros`."""
    return cuda_source.described(SOURCE, macros, 32 * LAUNCHED_WARPS, SHARED)
