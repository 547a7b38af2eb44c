"""`eagle_aot::layer_products`, what lies between the attentions of two decoder layers.

It is one node of a graph, in place of four `int4_small_m` and two `residual_norm`, whose bits it
keeps. Lowered for a GPU it becomes the kernel of `kernel.cu` for at most eight rows, and the
kernels of those operators for more; on a CPU it runs them. Neither importing this module nor
tracing needs triton.
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
from eagle_aot.triton_kernels.residual_norm import residual_norm

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

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


def is_joinable(codes: Tensor, scales: Tensor, features: int, columns: int) -> bool:
    """Whether the kernel reads a packed weight, [tiles, blocks, words] and [tiles, steps, scales]:
    whole tiles, in groups of `GROUP` columns."""
    whole = (features, columns) == (codes.shape[0] * TILE_N, codes.shape[1] * BLOCK_K)
    return whole and group_of(codes, scales) == GROUP


def is_served(codes: list[Tensor], splits: list[int], multiprocessors: int) -> bool:
    """Whether the kernel has room for x, work for each set of warps and split, and the sums of
    `residual_norm`, for the `codes` [tiles, blocks, words] and `splits` of `layer_products`."""
    out, gate, _, qkv = codes
    shares = gate.shape[0] * gate.shape[1]
    split = [(parts, weight.shape[1]) for parts, weight in zip(splits, codes, strict=True)]
    steps = max(-(-blocks // parts) for parts, blocks in split)
    slots = (SHARED - ROWS * (2 * BLOCK_K * steps + 64)) // SLOT
    pairs = out.shape[0] % SETS == 0 and qkv.shape[0] * splits[3] % SETS == 0
    full = all(none_is_idle(parts, blocks) for parts, blocks in split)
    wide = out.shape[0] * TILE_N >= LEAST_WIDTH and shares >= SETS * multiprocessors
    return wide and slots >= 2 * SETS and pairs and full


def exchanged_size(codes: list[Tensor], splits: list[int], multiprocessors: int) -> int:
    """Return how many numbers of four bytes programs exchange, sums by warps and rows, for the
    `codes` [tiles, blocks, words] and `splits` of `layer_products`."""
    out, gate, *_ = codes
    sums = (splits[0] + splits[2]) * out.shape[0] + SETS * multiprocessors
    rows = 4 * out.shape[0] * TILE_N + gate.shape[0] * TILE_N // 2
    return ROWS * (sums * WARPS * 16 + rows // 2)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the parts of the next layer's queries, keys and values, the stream and its norm, and
    what the next `layer_products` exchanges.

    `attended` [1, R, K] is multiplied by the first of four packed weights, whose order is output
    product, gate and up, down, and the next projections; `codes`, `scales` and `splits` are those
    of `int4_small_m`. Around the second and third, the residual sums and norms are those of
    `residual_norm`, the first with `post_weights[0]` and `next_weights[0]` [H], the second with the
    others and `scale` [1]. `post_weights` is empty without them. `eps` are post, next, post, next.
    Parts are [S, 1, R, N], stream [1, R, H] and its norm too. The kernel fills `multiprocessors`.
    `exchanged` int32 [`exchanged_size` or more], full of `EMPTY`, is its own: nothing else reads
    what it leaves there. The last result is as large, and empty for a next call of as many rows.
    """
    from eagle_aot.triton_kernels.layer_products.kernel import launch

    return launch(
        attended, stream, exchanged, codes, scales, splits, post_weights, next_weights, scale,
        activation, eps, multiprocessors,
    )  # fmt: skip


def separate_kernels(
    attended: Tensor, stream: Tensor, exchanged: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Do what `layer_products` does by the operators that it replaces: [S, 1, R, N], [1, R, H]
    twice, and what is not used."""
    kernels = int4_small_m, residual_norm
    parts, stream, normed, *_ = composed(*kernels, attended, stream, *arguments[:-1])
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
    return product(last_normed, 3), last, last_normed, between, normed, hidden


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
    width = codes[3].shape[0] * TILE_N
    dtype = stream.dtype if splits[3] == 1 else torch.float32
    parts = stream.new_empty((splits[3], *stream.shape[:-1], width), dtype=dtype)
    return parts, torch.empty_like(stream), torch.empty_like(stream), torch.empty_like(exchanged)
