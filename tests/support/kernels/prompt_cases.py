"""Chunks of random prompts, and the expected output of their rows, from tokens alone."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.triton_kernels.kv_int8 import quantize_entries
from support.kernels.sdpa_cases import QUERIES, Layer, by_token, entries

TOKENS = 40_000
Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float, int, int]


@dataclass(frozen=True)
class Prompt:
    """`rows` tokens after `context` others; slots that they do not see hold `hidden`.

    A ring holds `rows` and at least two windows. `images` are (first, end) row ranges of the chunk
    whose rows see each other in both directions.
    """

    layer: Layer
    context: int
    rows: int
    sequence: int = 0
    sequences: int = 1
    slots: int = 640
    hidden: float = math.nan
    device: str = "cpu"
    ring: int = 0
    images: tuple[tuple[int, int], ...] = ()

    @property
    def last(self) -> Tensor:
        """The last position that each row sees, -1 if that is its own: int64 [rows]."""
        last = torch.full((self.rows,), -1, device=self.device)
        for first, end in self.images:
            last[first:end] = self.context + end - 1
        return last

    @property
    def size(self) -> int:
        """The length of the ring, 0 without one."""
        window = self.layer.window
        return self.ring or (window + max(window, 96) if window else 0)

    @property
    def seen(self) -> Tensor:
        """The tokens whose keys any row sees, int64 [n]."""
        first = max(0, self.context - self.layer.window + 1) if self.layer.window else 0
        return torch.arange(first, self.context + self.rows, device=self.device)

    def arguments(self) -> Arguments:
        """Return the arguments of the operator."""
        layer, seen = self.layer, self.seen
        queries, *kv = entries(layer, TOKENS, self.device)
        rows = torch.arange(self.context, self.context + self.rows, device=self.device)
        slots = self.size + 8 if layer.window else self.slots
        shape = layer.kv_heads, self.sequences, slots, layer.head_dim
        occupied = torch.remainder(seen, self.size) if layer.window else seen
        caches = [table.new_full(shape, self.hidden) for table in kv]
        for cache, table in zip(caches, kv, strict=True):
            cache[:, self.sequence, occupied] = table[seen].transpose(0, 1)
        if layer.int8:
            caches = [quantize_entries(cache) for cache in caches]
        if layer.by_token:
            caches = [by_token(cache) for cache in caches]
        sequence = torch.tensor([self.sequence], device=self.device)
        q = queries[rows % QUERIES].unsqueeze(0)
        return q, caches[0], caches[1], rows, sequence, layer.scale, layer.window, self.size

    def expected(self, every: int = 1) -> Tensor:
        """Compute PyTorch's attention in float64, [1, rows / every, heads, D]."""
        layer, seen = self.layer, self.seen
        queries, *kv = entries(layer, TOKENS, self.device)
        rows = torch.arange(self.context, self.context + self.rows, every, device=self.device)
        last = torch.maximum(rows, self.last[::every]).unsqueeze(1)
        visible = (seen <= last) & (rows.unsqueeze(1) - seen < (layer.window or TOKENS))
        group = layer.heads // layer.kv_heads
        q = queries[rows % QUERIES].double().transpose(0, 1)
        k, v = (x[seen].double().transpose(0, 1).repeat_interleave(group, dim=0) for x in kv)
        attended = F.scaled_dot_product_attention(q, k, v, visible, scale=layer.scale)
        return attended.transpose(0, 1).unsqueeze(0)
