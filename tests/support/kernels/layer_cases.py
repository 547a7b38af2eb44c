"""Decoder layers between two attentions, with random packed weights, and the second of these."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import choose_splits
from eagle_aot.triton_kernels.layer_products.op import EMPTY, exchanged_size
from support.kernels.sdpa_cases import TAIL, Layer, Text, forward


@dataclass(frozen=True)
class LayerCase:
    """Widths of a layer: hidden, of the MLP, of attention's output, of the next projections."""

    hidden: int
    mlp: int
    attended: int
    projected: int
    activation: str = "gelu_tanh"
    has_posts: bool = True
    has_scale: bool = True

    def weights(self, device: str, multiprocessors: int) -> tuple[Any, ...]:
        """Return the arguments of `layer_products` after the first three."""
        shapes = (
            (self.hidden, self.attended),
            (2 * self.mlp, self.hidden),
            (self.hidden, self.mlp),
            (self.projected, self.hidden),
        )
        packed = [random_weight(*shape, device) for shape in shapes]
        splits = [choose_splits(n, k // 128, multiprocessors) for n, k in shapes]
        splits[1] = 1
        norms = 1 + 0.1 * torch.randn(4, self.hidden, device=device, dtype=torch.bfloat16)
        scale = torch.full((1,), 0.9, device=device, dtype=torch.bfloat16)
        return (
            [codes for codes, _ in packed],
            [scales for _, scales in packed],
            splits,
            list(norms[:2]) if self.has_posts else [],
            list(norms[2:]),
            scale if self.has_scale else None,
            self.activation,
            [1e-6, 1e-5, 1e-6, 1e-6],
            multiprocessors,
        )

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
        codes, _, splits, *_, count = weights
        like, size = codes[0], exchanged_size(codes, splits, count, heads)
        return like.new_full((size,), EMPTY, dtype=torch.int32)


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
