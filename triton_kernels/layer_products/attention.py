"""Launches the kernel of `kernel.cu` with attention after its products.

Importing this module needs triton.
"""

from typing import Any

from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.cuda_source import as_text
from eagle_aot.triton_kernels.layer_products.kernel import (
    described,
    layer_products_kernel,
    prepare,
)
from eagle_aot.triton_kernels.layer_products.macros import attention_macros
from eagle_aot.triton_kernels.layer_products.op import ROWS
from eagle_aot.triton_kernels.norm_rope_store import kernel as norm_rope_store
from eagle_aot.triton_kernels.row_tiling import one_if_positive
from eagle_aot.triton_kernels.sdpa_splitk import kernel as sdpa_splitk


def launch(
    layer: tuple[Any, ...], store: tuple[Any, ...], attend: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch the kernels of `op.layer_attention`, with the arguments of `layer_products`, those of
    `norm_rope_store` after the first, and those of `sdpa_splitk` after the caches.

    For at most eight rows of one text the grids of all other kernels are empty. Returns [1, R,
    heads * D], [1, R, H] twice, and what the next one exchanges.
    """
    (parts, stream, normed, emptied), operands = prepare(*layer)
    cos, sin, q_weight, k_weight, k_cache, v_cache, row_slots, sources, targets = store[:9]
    heads, norm_values, head_eps = store[9:]
    positions, sequences, tail, slots, scale, window, ring = attend
    (batch, _), rows = positions.shape, stream.shape[-2]
    *_, multiprocessors, macros = layer
    few = one_if_positive(ROWS + 1 - rows)
    attends = few * one_if_positive(2 - batch)
    attended = stream.new_empty((*positions.shape, heads, k_cache.shape[-1]))
    moves = 0 if sources is None else sources.shape[1]
    of_projections = parts.shape[0], parts.shape[-1]
    own = attention_macros(k_cache, of_projections, store[9:], attend[3:], moves)
    assert macros.endswith(as_text(own)), f"heads are joined as {macros} and lowered as {own}"
    wrap_triton(layer_products_kernel)[(multiprocessors * few,)](
        *operands,
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
        CUDA=described(macros),
    )
    q = norm_rope_store.launch(
        parts, (cos, sin), (q_weight, k_weight), (k_cache, v_cache), row_slots, (sources, targets),
        heads, norm_values, head_eps, k_cache.dtype, attends,
    )  # fmt: skip
    by_text = q.view(attended.shape)
    k, v = (cache.unflatten(1, (-1, slots)) for cache in (k_cache, v_cache))
    sdpa_splitk.launch(
        by_text, k, v, positions, sequences, tail, scale, window, ring, out=attended, unless=attends
    )
    return attended.view(1, rows, -1), stream, normed, emptied
