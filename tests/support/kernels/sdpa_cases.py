"""Random attention layers, texts that grow as chains and trees, and the expected output of rows.

Every token has its own query, key and value, in any slot, row or forward. So the expected output of
a row depends only on the tokens of its path.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.triton_kernels.kv_int8 import quantize_entries, read_entries

TAIL = 16
QUERIES = 1024
"""Number of consecutive tokens with different queries."""


@dataclass(frozen=True)
class Layer:
    """Attention of `heads` over `kv_heads`; the cache is a ring if `window` is not 0, has INT8
    entries with `int8`, and lies in memory token by token with `by_token`."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    dtype: torch.dtype
    int8: bool = False
    by_token: bool = False

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def ring(self) -> int:
        return self.window + max(self.window, 96) if self.window else 0


@dataclass(frozen=True)
class Row:
    """A token of a forward, the row it follows (-1: the committed tokens) and its logical slot."""

    token: int
    parent: int
    slot: int


@dataclass(frozen=True)
class Text:
    """Committed tokens, in slots from 0 on, and the rows of one forward that follow them."""

    committed: Sequence[int]
    rows: tuple[Row, ...]

    def branch(self, row: int) -> list[Row]:
        """Return the rows of a row's path, its own last."""
        path: list[Row] = []
        while row >= 0:
            path.append(self.rows[row])
            row = self.rows[row].parent
        return path[::-1]

    def path(self, row: int) -> list[int]:
        """Return all tokens up to a row's own."""
        return [*self.committed, *(run.token for run in self.branch(row))]

    def position(self, row: int) -> int:
        return len(self.committed) + len(self.branch(row)) - 1

    def tail(self, row: int) -> list[int]:
        """Return the logical slots of a row's last tokens, -1 before the start of the text."""
        branch = [node.slot for node in self.branch(row)][-TAIL:]
        committed = range(len(self.committed) - TAIL + len(branch), len(self.committed))
        return [*(max(slot, -1) for slot in committed), *branch]

    def only(self, row: int) -> "Text":
        """Return a row as plain decoding runs it, with all tokens before its own committed."""
        *committed, own = self.path(row)
        return Text(committed, (Row(own, -1, len(committed)),))

    def some(self, first: int, end: int) -> "Text":
        """Return the rows first .. end - 1 of a chain."""
        path = self.path(first)
        return chain(len(path) - 1, end - first, path[0])


def chain(context: int, rows: int, first_token: int = 0) -> Text:
    """Make consecutive rows after `context` tokens, each in the slot of its position."""
    committed = range(first_token, first_token + context)
    nodes = (Row(first_token + context + row, row - 1, context + row) for row in range(rows))
    return Text(committed, tuple(nodes))


def tree(
    context: int, parents: Sequence[int], slots: Sequence[int] | None = None, first_token: int = 0
) -> Text:
    """Make rows that follow `parents`, in `slots` counted from the end of the committed tokens."""
    committed = range(first_token, first_token + context)
    slots = range(len(parents)) if slots is None else slots
    nodes = (
        Row(first_token + context + row, parent, context + slots[row])
        for row, parent in enumerate(parents)
    )
    return Text(committed, tuple(nodes))


@lru_cache(maxsize=4)
def entries(layer: Layer, tokens: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Make queries [QUERIES, heads, D], keys and values [tokens, kv_heads, D] of all tokens.

    The spread of the scores lets a few keys dominate.
    """
    sizes = (QUERIES, layer.heads), (tokens, layer.kv_heads), (tokens, layer.kv_heads)
    generator = torch.Generator(device).manual_seed(1)
    q, k, v = (
        torch.randn(*size, layer.head_dim, generator=generator, device=device) for size in sizes
    )
    if layer.int8:
        k, v = (read_entries(quantize_entries(x), torch.float32) for x in (k, v))
        return (3 * q).to(layer.dtype), k, v
    return (3 * q).to(layer.dtype), k.to(layer.dtype), v.to(layer.dtype)


@dataclass(frozen=True)
class Forward:
    """The inputs of an attention operator, for the texts of one forward."""

    layer: Layer
    texts: tuple[Text, ...]
    q: Tensor
    k: Tensor
    v: Tensor
    positions: Tensor
    sequences: Tensor
    tail: Tensor
    tokens: int

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, int, int]:
        """The arguments of the operator; q is [B, T, heads, D]."""
        layer = self.layer
        tensors = self.q, self.k, self.v, self.positions, self.sequences, self.tail
        return *tensors, layer.scale, layer.window, layer.ring

    def expected(self, every: int = 1) -> Tensor:
        """Compute PyTorch's attention in float64 for each `every`th row, [B, T, heads, D]."""
        out = torch.zeros_like(self.q, dtype=torch.float64)
        _, k, v = entries(self.layer, self.tokens, str(self.q.device))
        group = self.layer.heads // self.layer.kv_heads
        for b, text in enumerate(self.texts):
            for row in range(0, len(text.rows), every):
                seen = torch.tensor(text.path(row)[-self.layer.window :], device=self.q.device)
                keys, values = (x[seen].transpose(0, 1).double() for x in (k, v))
                q = self.q[b, row].double().unflatten(0, (-1, group))
                attended = F.scaled_dot_product_attention(q, keys, values, scale=self.layer.scale)
                out[b, row] = attended.flatten(0, 1)
        return out


def forward(
    layer: Layer,
    *texts: Text,
    slots: int = 640,
    rows: int = 0,
    caches: Sequence[int] | None = None,
    number_of_caches: int = 0,
    hidden: float = math.nan,
    tokens: int = 8192,
    device: str = "cpu",
) -> Forward:
    """Make one forward of all texts, with `rows` rows each, or as many as the longest text has.

    The entries of each text are in its cache of `caches`, by default in the order of texts. `slots`
    is the length of a flat cache. Slots that no row sees, and the queries of padding, hold
    `hidden`.
    """
    rows = rows or max(len(text.rows) for text in texts)
    caches = list(range(len(texts))) if caches is None else list(caches)
    queries, *kv = entries(layer, tokens, device)
    q = queries.new_full((len(texts), rows, layer.heads, layer.head_dim), hidden)
    positions = torch.full((len(texts), rows), -1)
    tail = torch.full((len(texts), rows, TAIL), -1)
    slots = layer.ring + 8 if layer.window else slots
    cache_count = max(number_of_caches, *(c + 1 for c in caches), 1)
    shape = layer.kv_heads, cache_count, slots, layer.head_dim
    k, v = (table.new_full(shape, hidden) for table in kv)
    for b, text in enumerate(texts):
        for row, node in enumerate(text.rows):
            q[b, row] = queries[node.token % QUERIES]
            positions[b, row] = text.position(row)
            tail[b, row] = torch.tensor(text.tail(row))
        stored_slots, stored_tokens = stored(layer, text)
        for cache, table in zip((k, v), kv, strict=True):
            cache[:, caches[b], stored_slots] = table[stored_tokens].transpose(0, 1)
    if layer.int8:
        k, v = quantize_entries(k), quantize_entries(v)
    if layer.by_token:
        k, v = by_token(k), by_token(v)
    sequences = torch.tensor(caches).to(device)
    return Forward(layer, texts, q, k, v, positions.to(device), sequences, tail.to(device), tokens)


def by_token(cache: Tensor) -> Tensor:
    """Return a cache [kv_heads, ..., slots, E] in whose memory the heads of a slot lie together."""
    return cache.movedim(0, -2).contiguous().movedim(-2, 0)


def stored(layer: Layer, text: Text) -> tuple[Tensor, Tensor]:
    """Return the physical slots int64 [n] that rows of the text see, and their tokens int64 [n]."""
    context = len(text.committed)
    first = max(0, context - layer.window + 1) if layer.window else 0
    slots = torch.tensor([*range(first, context), *(row.slot for row in text.rows)])
    tokens = torch.tensor([*text.committed[first:], *(row.token for row in text.rows)])
    return (torch.remainder(slots, layer.ring) if layer.window else slots), tokens


def relative_error(output: Tensor, expected: Tensor) -> float:
    """Return the largest RMS error of a row [..., D], relative to its expected RMS."""
    error = (output.double() - expected).square().mean(dim=-1).sqrt()
    return float((error / expected.square().mean(dim=-1).sqrt().clamp(min=1e-300)).max())
