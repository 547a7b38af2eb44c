"""Decoder layers between two attentions, with random packed weights, and the second of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_aot.triton_kernels.cuda_source import Macros, as_text
from eagle_aot.triton_kernels.int4_gemm import choose_splits
from eagle_aot.triton_kernels.layer_products.macros import (
    NO_ATTENTION,
    attention_macros,
    common_macros,
    layer_macros,
)
from eagle_aot.triton_kernels.layer_products.op import EMPTY, exchanged_size
from support.kernels.sdpa_cases import TAIL, Layer, Text, forward


@dataclass(frozen=True)
class LayerCase:
    """Widths of a layer: hidden, of the MLP, of attention's output, of the next projections, which
    is 0 for the last layer."""

    hidden: int
    mlp: int
    attended: int
    projected: int
    activation: str = "gelu_tanh"
    has_posts: bool = True
    has_scale: bool = True

    def weights(
        self, device: str, multiprocessors: int, heads: int = 0, splits: Sequence[int] = ()
    ) -> tuple[Any, ...]:
        """Return the arguments of `layer_products` after the first three; `heads` query heads
        attend afterwards. `splits` are those of products if not as usual."""
        shapes = (
            (self.hidden, self.attended),
            (2 * self.mlp, self.hidden),
            (self.hidden, self.mlp),
            (self.projected, self.hidden),
        )[: 4 if self.projected else 3]
        packed = [random_weight(*shape, device) for shape in shapes]
        usual = [choose_splits(n, k // 128, multiprocessors) for n, k in shapes]
        splits = list(splits) or [usual[0], 1, *usual[2:]]
        norms = 1 + 0.1 * torch.randn(4, self.hidden, device=device, dtype=torch.bfloat16)
        scale = torch.full((1,), 0.9, device=device, dtype=torch.bfloat16)
        codes = [codes for codes, _ in packed]
        weights = (
            codes,
            [scales for _, scales in packed],
            splits,
            list(norms[:2]) if self.has_posts else [],
            list(norms[2:]),
            scale if self.has_scale else None,
            self.activation,
            [1e-6, 1e-5, 1e-6, 1e-6],
            multiprocessors,
        )
        size = exchanged_size(codes, splits, multiprocessors, heads)
        return *weights, *common_macros([macros_of(weights, size)], [{}])

    def rows(self, count: int, device: str) -> tuple[Tensor, Tensor]:
        """Return what attention gives and the stream, [1, count, ...]."""
        widths = self.attended, self.hidden
        attended, stream = (
            torch.randn(1, count, width, device=device, dtype=torch.bfloat16) for width in widths
        )
        return attended, stream

    def exchanged(self, weights: tuple[Any, ...], heads: int = 0) -> Tensor:
        """Return the memory that programs of the kernel exchange for `weights`, empty; with
        attention of as many query heads as `heads` after it."""
        codes, _, splits, *_, count, _ = weights
        like, size = codes[0], exchanged_size(codes, splits, count, heads)
        return like.new_full((size,), EMPTY, dtype=torch.int32)


def macros_of(weights: tuple[Any, ...], size: int) -> Macros:
    """Return the macros of a layer with `weights`, whose programs exchange `size` numbers."""
    codes, _, splits, posts, _, scale, activation, eps, count, *_ = weights
    return layer_macros(codes, splits, bool(posts), scale is not None, activation, eps, count, size)


def with_attention(
    weights: tuple[Any, ...], store: tuple[Any, ...], attend: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return `weights` for a kernel that attends, with the arguments of `layer_attention` after
    them."""
    macros, own = weights[-1], attention_of(weights, store, attend)
    return *weights[:-1], macros.replace(as_text(NO_ATTENTION), as_text(own))


def attention_of(
    weights: tuple[Any, ...], store: tuple[Any, ...], attend: tuple[Any, ...]
) -> Macros:
    """Return the macros of the attention after a layer with `weights`."""
    codes, _, splits, *_ = weights
    k_cache, sources = store[4], store[7]
    parts = splits[3], codes[3].shape[0] * 128
    moves = 0 if sources is None else sources.shape[1]
    return attention_macros(k_cache, parts, store[9:], attend[3:], moves)


def random_weight(features: int, columns: int, device: str) -> tuple[Tensor, Tensor]:
    """Return codes and scales of a symmetric weight in groups of 32."""
    tiles, blocks = features // 128, columns // 128
    words = tiles, blocks, 4096
    codes = torch.randint(-(2**15), 2**15, words, dtype=torch.int16, device=device)
    scales = (torch.rand(tiles, blocks, 512, device=device) + 0.2) * columns**-0.5 / 4
    return codes, scales.to(torch.bfloat16)


def attention_after(
    heads: Layer, *texts: Text, device: str = "cpu"
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what `layer_attention` takes after a layer, for texts in all caches but the first.

    The entry of the last token but one before the first text's rows is moved, from the slot of its
    last row if it has several. The entries of rows are not stored yet, and NaN like others that no
    row sees.
    """
    inputs = forward(heads, *texts, caches=range(1, len(texts) + 1), device=device)
    positions, sequences, tail = inputs.positions, inputs.sequences, inputs.tail
    slots = inputs.k.shape[2]
    first = slots * sequences[:, None]
    own = tail[..., -1]
    row_slots = torch.where(own < 0, slots - 1, own % heads.ring) + first
    before = positions[:, :1] + torch.arange(-TAIL, 0, device=device)
    targets = torch.where(before < 0, slots - 1, before % heads.ring) + first
    sources = targets.clone()
    free = slots - 3 if positions.shape[1] == 1 else int(row_slots[0, -1]) - slots
    sources[0, -2] = slots + free
    caches = [cache.flatten(1, 2) for cache in (inputs.k, inputs.v)]
    for cache in caches:
        moved = cache[:, targets[0, -2]].clone()
        cache[:, row_slots] = cache[:, targets[0, -2]] = torch.nan
        cache[:, sources[0, -2]] = moved
    rows = positions.numel()
    angles = torch.randn(1, rows, 1, heads.head_dim, device=device)
    norms = 1 + torch.randn(2, heads.head_dim, device=device).bfloat16() / 4
    store = angles.cos(), angles.sin(), *norms, *caches, row_slots.flatten(), sources, targets
    attend = positions, sequences, tail, slots, heads.scale, heads.window, heads.ring
    return (*store, heads.heads, True, 1e-6), attend
