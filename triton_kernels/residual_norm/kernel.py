"""The residual sum and its norms on a GPU: one program per row, which reads everything once.

Importing this module needs triton.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.row_tiling import one_if_positive

WARPS = 8


@triton.jit
def rms_norm(x: tl.tensor, weight: tl.tensor, H: tl.constexpr, EPS: tl.constexpr) -> tl.tensor:
    """Normalise x float32 [BLOCK], zero from H on, by its root mean square; multiply by weight."""
    return x * tl.rsqrt(tl.sum(x * x) / H + EPS) * weight.to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def residual_norm_kernel(
    parts_ptr: tl.tensor,
    stream_ptr: tl.tensor,
    post_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    next_ptr: tl.tensor,
    out_ptr: tl.tensor,
    normed_ptr: tl.tensor,
    rows: tl.tensor,
    SPLITS: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_POST: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    POST_EPS: tl.constexpr,
    NEXT_EPS: tl.constexpr,
) -> None:
    """Process one row, rounding to the stream's dtype after each step as separate modules do."""
    dtype = out_ptr.dtype.element_ty
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < H
    # Everything that does not depend on a sum is loaded before the first one.
    next_weight = tl.load(next_ptr + column, mask=inside, other=0.0)
    post_weight = next_weight
    if HAS_POST:
        post_weight = tl.load(post_ptr + column, mask=inside, other=0.0)
    scale = tl.load(scale_ptr).to(tl.float32)
    stream = tl.load(stream_ptr + row * H + column, mask=inside, other=0.0).to(tl.float32)
    branch = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        part = parts_ptr + (split * rows + row) * H + column
        branch += tl.load(part, mask=inside, other=0.0).to(tl.float32)
    branch = branch.to(dtype).to(tl.float32)
    if HAS_POST:
        branch = rms_norm(branch, post_weight, H, POST_EPS).to(dtype).to(tl.float32)
    stream = (stream + branch).to(dtype).to(tl.float32)
    if HAS_SCALE:
        stream = (stream * scale).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * H + column, stream.to(dtype), mask=inside)
    normed = rms_norm(stream, next_weight, H, NEXT_EPS)
    tl.store(normed_ptr + row * H + column, normed.to(dtype), mask=inside)


def launch(
    parts: Tensor,
    stream: Tensor,
    post_weight: Tensor | None,
    scale: Tensor | None,
    next_weight: Tensor,
    post_eps: float,
    next_eps: float,
    above: int = 0,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments and results are those of `op.residual_norm`, [1, T, H] each.

    For at most `above` rows nothing is launched or written.
    """
    stream = stream.contiguous()
    out, normed = stream.new_empty(stream.shape), stream.new_empty(stream.shape)
    hidden, rows = stream.shape[-1], stream.shape[-2]
    grid = rows * one_if_positive(rows - above) if above else rows
    wrap_triton(residual_norm_kernel)[(grid,)](
        parts.contiguous(),
        stream,
        next_weight if post_weight is None else post_weight,
        next_weight if scale is None else scale,
        next_weight,
        out,
        normed,
        rows,
        SPLITS=parts.shape[0],
        H=hidden,
        BLOCK=triton.next_power_of_2(hidden),
        HAS_POST=post_weight is not None,
        HAS_SCALE=scale is not None,
        POST_EPS=post_eps,
        NEXT_EPS=next_eps,
        num_warps=WARPS,
    )
    return out, normed
