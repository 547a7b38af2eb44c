"""`eagle_aot::layer_products`, what lies between the attentions of two decoder layers.

It is one node of a graph, in place of four `int4_small_m`, or three after the last attention, and
two `residual_norm`, whose bits it keeps. Lowered for a GPU it becomes the kernel of `kernel.cu`
for at most eight rows, and the kernels of those operators for more; on a CPU it runs them. Neither
importing this module nor tracing needs triton.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.int4_gemm.api import none_is_idle
from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m
from eagle_aot.triton_kernels.int4_gemm.packing import BLOCK_K, TILE_N, group_of
from eagle_aot.triton_kernels.layer_products.macros import fits_shape, shapes_of, steps_of
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store
from eagle_aot.triton_kernels.residual_norm import residual_norm
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from eagle_aot.triton_kernels.sdpa_splitk.tiling import choose_tiling

GROUP = 32
"""The group size of the weights that the kernel reads."""

LEAST_WIDTH = 2048
"""The least hidden size: below, `residual_norm` adds up in another order."""

SETS, WARPS, ROWS = 2, 8, 8
"""Sets of a block's warps, each with a share of every product; the warps of a set; most rows."""

SHARED, SLOT = 231_936, 18_432
"""Bytes of a block's shared memory and of a slot of its rings, as in `kernel.cu`."""

EMPTY = -1
"""What memory that programs exchange holds at first."""

HEAD_DIM, WINDOW, RANKS, ITEMS, PARTS = 256, 1024, 8, 16, 10
"""What attention after the products is written for: elements of a head, keys of a window; blocks
of a key/value head; rows and heads of a tile; parts of a row, nine chunks and its tail."""

TILES = 16, 64, 128, 9, 4
"""Rows, keys, keys of a chunk, chunks and warps of the kernels whose order of sums it has."""

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


def is_joinable(codes: Tensor, scales: Tensor, features: int, columns: int) -> bool:
    """Whether the kernel reads a packed weight, [tiles, blocks, words] and [tiles, steps, scales]:
    whole tiles, in groups of `GROUP` columns."""
    whole = (features, columns) == (codes.shape[0] * TILE_N, codes.shape[1] * BLOCK_K)
    return whole and group_of(codes, scales) == GROUP


def is_served(codes: list[Tensor], splits: list[int], multiprocessors: int) -> bool:
    """Whether the kernel has room for x, work for each set of warps and split, the sums of
    `residual_norm`, and bits for sizes, for the `codes` [tiles, blocks, words] and `splits` of
    `layer_products`."""
    out, gate, _, *after = codes
    shares = gate.shape[0] * gate.shape[1]
    split = [(parts, weight.shape[1]) for parts, weight in zip(splits, codes, strict=True)]
    steps = max(steps_of(blocks, parts) for parts, blocks in split)
    slots = (SHARED - ROWS * (2 * BLOCK_K * steps + 64)) // SLOT
    pairs = out.shape[0] % SETS == 0
    pairs &= all(weight.shape[0] * splits[3] % SETS == 0 for weight in after)
    full = all(none_is_idle(parts, blocks) for parts, blocks in split)
    full &= all(fits_shape(*shape) for shape in shapes_of(codes, splits))
    wide = out.shape[0] * TILE_N >= LEAST_WIDTH and shares >= SETS * multiprocessors
    return wide and slots >= 2 * SETS and pairs and full


def exchanged_size(
    codes: list[Tensor], splits: list[int], multiprocessors: int, heads: int = 0
) -> int:
    """Return how many numbers of four bytes programs exchange, sums by warps and rows, for the
    `codes` [tiles, blocks, words] and `splits` of `layer_products`; and parts of projections and of
    attention, if `heads` query heads attend."""
    out, gate, *_ = codes
    sums = (splits[0] + splits[2]) * out.shape[0] + SETS * multiprocessors
    rows = 4 * out.shape[0] * TILE_N + gate.shape[0] * TILE_N // 2
    if not heads:
        return ROWS * (sums * WARPS * 16 + rows // 2)
    attention = splits[3] * codes[3].shape[0] * TILE_N + heads * PARTS * (HEAD_DIM // 2 + 4)
    return ROWS * (sums * WARPS * 16 + rows // 2 + attention)


@_operator("eagle_aot::layer_products", mutates_args={})
def layer_products(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the parts of the next layer's queries, keys and values, the stream and its norm, and
    what the next `layer_products` exchanges.

    `attended` [1, R, K] is multiplied by the first of four packed weights, whose order is output
    product, gate and up, down, and the next projections. The last layer has three, and its parts
    [1, 1, R, 128] have no meaning. `codes`, `scales` and `splits` are those of `int4_small_m`.
    Around the second and third, the residual sums and norms are those of
    `residual_norm`, the first with `post_weights[0]` and `next_weights[0]` [H], the second with the
    others and `scale` [1]. `post_weights` is empty without them. `eps` are post, next, post, next.
    Parts are [S, 1, R, N], stream [1, R, H] and its norm too. The kernel fills `multiprocessors`
    and is compiled with `macros`: see `macros.py`.
    `exchanged` int32 [`exchanged_size` or more], full of `EMPTY`, is its own: nothing else reads
    what it leaves there. The last result is as large, and empty for a next call of as many rows.
    """
    from eagle_aot.triton_kernels.layer_products.kernel import launch

    return launch(
        attended, stream, exchanged, codes, scales, splits, post_weights, next_weights, scale,
        activation, eps, multiprocessors, macros,
    )  # fmt: skip


def separate_kernels(
    attended: Tensor, stream: Tensor, exchanged: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Do what `layer_products` does by the operators that it replaces: [S, 1, R, N], [1, R, H]
    twice, and what is not used."""
    kernels = int4_small_m, residual_norm
    parts, stream, normed, *_ = composed(*kernels, attended, stream, *arguments[:-2])
    return parts, stream, normed, torch.empty_like(exchanged)


def composed(
    multiply: Callable[..., Tensor],
    add_and_norm: Callable[..., tuple[Tensor, Tensor]],
    attended: Tensor,
    stream: Tensor,
    codes: list[Tensor],
    scales: list[Tensor],
    splits: list[int],
    post_weights: list[Tensor],
    next_weights: list[Tensor],
    scale: Tensor | None,
    activation: str,
    eps: list[float],
) -> tuple[Tensor, ...]:
    """Compose `layer_products` of functions with the arguments of `int4_small_m` and
    `residual_norm`: its results, and then the stream between, its norm and the hidden rows of the
    MLP [1, R, ...]."""

    def product(x: Tensor, at: int, activated: str = "") -> Tensor:
        features = codes[at].shape[0] * TILE_N
        return multiply(x, codes[at], scales[at], None, features, splits[at], activated)

    def norm(parts: Tensor, onto: Tensor, at: int) -> tuple[Tensor, Tensor]:
        post = post_weights[at] if post_weights else None
        by = scale if at else None
        return add_and_norm(parts, onto, post, by, next_weights[at], eps[2 * at], eps[2 * at + 1])

    between, normed = norm(product(attended, 0), stream, 0)
    hidden = product(normed, 1, activation).flatten(0, 1)
    last, last_normed = norm(product(hidden, 2), between, 1)
    has_next = len(codes) > 3
    parts = product(last_normed, 3) if has_next else no_parts(stream)
    return parts, last, last_normed, between, normed, hidden


def no_parts(stream: Tensor) -> Tensor:
    """Return the parts after the last layer, for its `stream` [1, R, H]: float32 [1, 1, R, 128].

    Of the dtype that others usually have: for another one torch would make another kernel.
    """
    return stream.new_empty((1, *stream.shape[:-1], TILE_N), dtype=torch.float32)


layer_products.register_kernel("cpu")(separate_kernels)


@layer_products.register_fake
def _shapes(
    attended: Tensor,
    stream: Tensor,
    exchanged: Tensor,
    codes: list[Tensor],
    scales: list[Tensor],
    splits: list[int],
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if len(codes) > 3:
        width = codes[3].shape[0] * TILE_N
        dtype = stream.dtype if splits[3] == 1 else torch.float32
        parts = stream.new_empty((splits[3], *stream.shape[:-1], width), dtype=dtype)
    else:
        parts = no_parts(stream)
    return parts, torch.empty_like(stream), torch.empty_like(stream), torch.empty_like(exchanged)


def attends(
    q_shape: tuple[int, int],
    cache: Tensor,
    window: int,
    projected: tuple[int, int],
    multiprocessors: int,
) -> bool:
    """Whether the kernel attends after its products: with heads and elements of `q_shape`, the
    `cache` [kv_heads, slots, D] of keys, and parts and outputs of the projections of `projected`.

    All blocks with heads need a piece of the projections: they wait for moved entries by it."""
    (heads, head_dim), kv_heads, (splits, outputs) = q_shape, cache.shape[0], projected
    tiling = choose_tiling(heads, kv_heads, head_dim, window, int8=False)
    tiles = tiling.row_tile, tiling.key_tile, tiling.chunk, tiling.splits, tiling.warps
    of_element = cache.stride(2)
    fits = ROWS * heads <= ITEMS * kv_heads and RANKS * kv_heads <= multiprocessors
    fits &= splits * outputs // TILE_N >= SETS * RANKS * kv_heads
    return (
        (cache.dtype, head_dim, window, tiles) == (torch.bfloat16, HEAD_DIM, WINDOW, TILES)
        and (of_element, outputs) == (1, (heads + 2 * kv_heads) * HEAD_DIM)
        and fits
    )


@_operator("eagle_aot::layer_attention", mutates_args={"k_cache", "v_cache"})
def layer_attention(
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
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    row_slots: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    head_eps: float,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    slots: int,
    attention_scale: float,
    window: int,
    ring: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Do what `layer_products`, `norm_rope_store` and `sdpa_splitk` do one after another.

    Returns what the next layer's attention gives [1, R, heads * D], and the last three results of
    `layer_products`. Arguments are theirs in turn; a text has `slots` of the caches. For few rows
    of one text `kernel.cu` does everything; for others it leaves attention to theirs.
    """
    from eagle_aot.triton_kernels.layer_products.attention import launch

    layer = (
        attended, stream, exchanged, codes, scales, splits, post_weights, next_weights, scale,
        activation, eps, multiprocessors, macros,
    )  # fmt: skip
    store = (
        cos, sin, q_weight, k_weight, k_cache, v_cache, row_slots, sources, targets, heads,
        norm_values, head_eps,
    )  # fmt: skip
    return launch(layer, store, (positions, sequences, tail, slots, attention_scale, window, ring))


@layer_attention.register_kernel("cpu")
def _all_separate(
    attended: Tensor, stream: Tensor, exchanged: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts, stream, normed, emptied = separate_kernels(attended, stream, exchanged, *arguments[:10])
    return separate_attention(parts, *arguments[10:]), stream, normed, emptied


@layer_attention.register_fake
def _shapes_after(
    attended: Tensor, stream: Tensor, exchanged: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    k_cache, heads = arguments[14], arguments[19]
    out = stream.new_empty((*stream.shape[:-1], heads * k_cache.shape[-1]))
    return out, torch.empty_like(stream), torch.empty_like(stream), torch.empty_like(exchanged)


def separate_attention(
    parts: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    row_slots: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    heads: int,
    norm_values: bool,
    head_eps: float,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    slots: int,
    *scale_window_and_ring: Any,
) -> Tensor:
    """Attend by the operators that `layer_attention` replaces, with `parts` [S, 1, R, N]: [1, R,
    heads * D]."""
    q = norm_rope_store(
        parts, cos, sin, q_weight, k_weight, k_cache, v_cache, row_slots, sources, targets, heads,
        norm_values, head_eps, k_cache.dtype,
    )  # fmt: skip
    k, v = (cache.unflatten(1, (-1, slots)) for cache in (k_cache, v_cache))
    by_text = q.view(*positions.shape, *q.shape[2:])
    out = sdpa_splitk(by_text, k, v, positions, sequences, tail, *scale_window_and_ring)
    return out.view(1, q.shape[1], -1)
