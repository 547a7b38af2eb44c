"""Attention layers and their caches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.triton_kernels.sdpa_splitk.tiling import TAIL

FULL_BUFFER = 1 << 17
ROUND_ROWS = 8
MAX_ROWS = 64
"""Of all sequences of one forward together."""

DUMP = 8
"""Slots of a ring's cache that are not the ring's."""

COLD_BYTES = 110 << 20
"""What all copies of a cache hold at least, of what is read: more than twice an H100's L2."""

MAX_COPIES = 32


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention of one layer in bfloat16; ring if `window` is not 0."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def ring(self) -> int:
        return self.window + max(self.window, 96) if self.window else 0

    def bytes_read(self, context: int, rows: int) -> int:
        """Keys and values that the last `rows` of one sequence's `context` tokens see."""
        return 4 * self.kv_heads * self.head_dim * self.seen(context, rows)

    def seen(self, context: int, rows: int) -> int:
        """How many of one sequence's `context` tokens its last `rows` see."""
        return min(context, self.window + rows - 1) if self.window else context


LAYERS = (
    Layer("Gemma-4-31B full", 32, 4, 512),
    Layer("Llama-like", 32, 8, 128),
    Layer("Gemma-4-31B sliding", 32, 16, 256, 1024),
)


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values [kv_heads, S, slots, D] of random numbers."""

    k: Tensor
    v: Tensor


class Caches:
    """Copies of one cache, to be read in turn so that none is found in L2."""

    def __init__(self, layer: Layer, slots: int, shortest: int, sequences: int) -> None:
        """As many as the shortest context needs."""
        self.layer = layer
        self.slots = layer.ring + DUMP if layer.window else slots
        self.sequences = sequences
        self._copies = [self._random() for _ in range(self._needed(shortest))]

    def of(self, context: int) -> list[Cache]:
        """As many as `context` needs."""
        return self._copies[: self._needed(context)]

    def _needed(self, context: int) -> int:
        read = self.sequences * self.layer.bytes_read(context, 1)
        return min(MAX_COPIES, 1 + -(-COLD_BYTES // read))

    def _random(self) -> Cache:
        shape = self.layer.kv_heads, self.sequences, self.slots, self.layer.head_dim
        k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        return Cache(k, v)


@dataclass(frozen=True, slots=True)
class Queries:
    """The last rows of `context` tokens of every sequence, each a chain."""

    layer: Layer
    context: int
    q: Tensor
    positions: Tensor
    sequences: Tensor
    tail: Tensor

    @property
    def rows(self) -> int:
        """Of one sequence."""
        return self.q.shape[1]

    @property
    def seen(self) -> int:
        """Keys of one sequence that some row sees."""
        return self.layer.seen(self.context, self.rows)


def last_rows(layer: Layer, context: int, rows: int, sequences: int) -> Queries:
    """Random queries of the last `rows` of `context` tokens of so many sequences."""
    shape = sequences, rows, layer.heads, layer.head_dim
    q = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    positions = torch.arange(context - rows, context, device="cuda").repeat(sequences, 1)
    tail = positions.unsqueeze(-1) + torch.arange(1 - TAIL, 1, device="cuda")
    order = torch.arange(sequences, device="cuda")
    return Queries(layer, context, q, positions, order, tail.clamp(min=-1))
