"""Chunks of random prompts, and what their rows must compute, from tokens alone."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from support.kernels.sdpa_cases import QUERIES, Layer, entries

TOKENS = 40_000
Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float, int, int]


@dataclass(frozen=True)
class Prompt:
    """`rows` tokens behind `behind` others; slots that they do not see hold `hidden`.

    A ring has room for `rows`, as for a window at least. `pictures` are the rows of the chunk, from
    the first up to behind the last of each, that see one another both ways.
    """

    layer: Layer
    behind: int
    rows: int
    sequence: int = 0
    sequences: int = 1
    slots: int = 640
    hidden: float = math.nan
    device: str = "cpu"
    ring: int = 0
    pictures: tuple[tuple[int, int], ...] = ()

    @property
    def last(self) -> Tensor:
        """The last token that each row sees, -1 where that is its own."""
        found = torch.full((self.rows,), -1, device=self.device)
        for first, behind in self.pictures:
            found[first:behind] = self.behind + behind - 1
        return found

    @property
    def size(self) -> int:
        """Of the ring, 0 without one."""
        window = self.layer.window
        return self.ring or (window + max(window, 96) if window else 0)

    @property
    def seen(self) -> Tensor:
        """The tokens whose keys any row sees."""
        first = max(0, self.behind - self.layer.window + 1) if self.layer.window else 0
        return torch.arange(first, self.behind + self.rows, device=self.device)

    def arguments(self) -> Arguments:
        """As the operator takes them."""
        layer, seen = self.layer, self.seen
        queries, *kv = entries(layer, TOKENS, self.device)
        rows = torch.arange(self.behind, self.behind + self.rows, device=self.device)
        slots = self.size + 8 if layer.window else self.slots
        shape = layer.kv_heads, self.sequences, slots, layer.head_dim
        places = torch.remainder(seen, self.size) if layer.window else seen
        caches = [queries.new_full(shape, self.hidden) for _ in kv]
        for cache, table in zip(caches, kv, strict=True):
            cache[:, self.sequence, places] = table[seen].transpose(0, 1)
        sequence = torch.tensor([self.sequence], device=self.device)
        q = queries[rows % QUERIES].unsqueeze(0)
        return q, caches[0], caches[1], rows, sequence, layer.scale, layer.window, self.size

    def expected(self, every: int = 1) -> Tensor:
        """PyTorch's attention in float64, [1, rows / every, heads, D]."""
        layer, seen = self.layer, self.seen
        queries, *kv = entries(layer, TOKENS, self.device)
        rows = torch.arange(self.behind, self.behind + self.rows, every, device=self.device)
        sees_to = torch.maximum(rows, self.last[::every]).unsqueeze(1)
        visible = (seen <= sees_to) & (rows.unsqueeze(1) - seen < (layer.window or TOKENS))
        group = layer.heads // layer.kv_heads
        q = queries[rows % QUERIES].double().transpose(0, 1)
        k, v = (x[seen].double().transpose(0, 1).repeat_interleave(group, dim=0) for x in kv)
        attended = F.scaled_dot_product_attention(q, k, v, visible, scale=layer.scale)
        return attended.transpose(0, 1).unsqueeze(0)
