"""Decoder layers between two attentions, with random packed weights."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import choose_splits
from eagle_aot.triton_kernels.layer_products.op import EMPTY, exchanged_size


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

    def exchanged(self, weights: tuple[Any, ...]) -> Tensor:
        """Return the memory that programs of the kernel exchange for `weights`, empty."""
        codes, _, splits, *_, count = weights
        like, size = codes[0], exchanged_size(codes, splits, count)
        return like.new_full((size,), EMPTY, dtype=torch.int32)


def random_weight(features: int, columns: int, device: str) -> tuple[Tensor, Tensor]:
    """Return codes and scales of a symmetric weight in groups of 32."""
    tiles, blocks = features // 128, columns // 128
    words = tiles, blocks, 4096
    codes = torch.randint(-(2**15), 2**15, words, dtype=torch.int16, device=device)
    scales = (torch.rand(tiles, blocks, 512, device=device) + 0.2) * columns**-0.5 / 4
    return codes, scales.to(torch.bfloat16)
