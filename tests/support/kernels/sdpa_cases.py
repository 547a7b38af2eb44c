"""Random attention layers, texts that grow as chains and trees, and what their rows must compute.

Every token has its own query, key and value, whatever slot, row or forward it is met in. So what a
row must compute follows from the tokens of its path alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

TAIL = 16
QUERIES = 1024
"""So many tokens in a row have different queries."""


@dataclass(frozen=True)
class Layer:
    """Attention of `heads` query heads over `kv_heads`; ring if `window` is not 0."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    dtype: torch.dtype

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def ring(self) -> int:
        return self.window + max(self.window, 96) if self.window else 0


@dataclass(frozen=True)
class Row:
    """A token that is run: the row it follows, -1 for the committed text, and its logical slot."""

    token: int
    parent: int
    slot: int


@dataclass(frozen=True)
class Text:
    """Tokens that are committed, in slots 0 and on, and the rows of one forward behind them."""

    committed: Sequence[int]
    rows: tuple[Row, ...]

    def branch(self, row: int) -> list[Row]:
        """The rows of a row's path, its own last."""
        found: list[Row] = []
        while row >= 0:
            found.append(self.rows[row])
            row = self.rows[row].parent
        return found[::-1]

    def path(self, row: int) -> list[int]:
        """All tokens up to a row's own."""
        return [*self.committed, *(run.token for run in self.branch(row))]

    def position(self, row: int) -> int:
        return len(self.committed) + len(self.branch(row)) - 1

    def tail(self, row: int) -> list[int]:
        """Logical slots of a row's last tokens, -1 before the text's beginning."""
        own = [run.slot for run in self.branch(row)][-TAIL:]
        behind = range(len(self.committed) - TAIL + len(own), len(self.committed))
        return [*(max(slot, -1) for slot in behind), *own]

    def only(self, row: int) -> "Text":
        """A row as plain decoding runs it: all tokens before its own are committed."""
        *committed, own = self.path(row)
        return Text(committed, (Row(own, -1, len(committed)),))

    def some(self, first: int, behind: int) -> "Text":
        """A stretch of a chain's rows."""
        path = self.path(first)
        return chain(len(path) - 1, behind - first, path[0])


def chain(behind: int, rows: int, first_token: int = 0) -> Text:
    """Rows that count up behind `behind` tokens, each in the slot of its position."""
    committed = range(first_token, first_token + behind)
    run = (Row(first_token + behind + row, row - 1, behind + row) for row in range(rows))
    return Text(committed, tuple(run))


def tree(
    behind: int, parents: Sequence[int], slots: Sequence[int] | None = None, first_token: int = 0
) -> Text:
    """Rows that follow `parents`, in `slots` counted from the committed text's end."""
    committed = range(first_token, first_token + behind)
    slots = range(len(parents)) if slots is None else slots
    run = (
        Row(first_token + behind + row, parent, behind + slots[row])
        for row, parent in enumerate(parents)
    )
    return Text(committed, tuple(run))


@lru_cache(maxsize=4)
def entries(layer: Layer, tokens: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [QUERIES, heads, D], keys and values [tokens, kv_heads, D] of all tokens.

    Scores are spread enough for a few keys to matter most.
    """
    sizes = (QUERIES, layer.heads), (tokens, layer.kv_heads), (tokens, layer.kv_heads)
    generator = torch.Generator(device).manual_seed(1)
    q, k, v = (
        torch.randn(*size, layer.head_dim, generator=generator, device=device) for size in sizes
    )
    return (3 * q).to(layer.dtype), k.to(layer.dtype), v.to(layer.dtype)


@dataclass(frozen=True)
class Forward:
    """The tensors that an attention gets, for texts of one forward."""

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
        layer = self.layer
        tensors = self.q, self.k, self.v, self.positions, self.sequences, self.tail
        return *tensors, layer.scale, layer.window, layer.ring

    def expected(self, every: int = 1) -> Tensor:
        """PyTorch's attention in float64 over the keys of `every` so many rows' paths, [B, T,
        heads, D]."""
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
    """One forward of all texts, in `rows` rows each or as many as the longest has.

    A text's entries lie in its one of `caches`, in the order of texts where none are given. `slots`
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
    held = max(number_of_caches, *(c + 1 for c in caches), 1)
    shape = layer.kv_heads, held, slots, layer.head_dim
    k, v = (queries.new_full(shape, hidden) for _ in kv)
    for b, text in enumerate(texts):
        for row, run in enumerate(text.rows):
            q[b, row] = queries[run.token % QUERIES]
            positions[b, row] = text.position(row)
            tail[b, row] = torch.tensor(text.tail(row))
        places, held_tokens = stored(layer, text)
        for cache, table in zip((k, v), kv, strict=True):
            cache[:, caches[b], places] = table[held_tokens].transpose(0, 1)
    numbers = (x.to(device) for x in (positions, torch.tensor(caches), tail))
    return Forward(layer, texts, q, k, v, *numbers, tokens)


def stored(layer: Layer, text: Text) -> tuple[Tensor, Tensor]:
    """Physical slots and their tokens, of those that a row of the text sees."""
    behind = len(text.committed)
    first = max(0, behind - layer.window + 1) if layer.window else 0
    places = torch.tensor([*range(first, behind), *(row.slot for row in text.rows)])
    held = torch.tensor([*text.committed[first:], *(row.token for row in text.rows)])
    return (torch.remainder(places, layer.ring) if layer.window else places), held


def relative_error(output: Tensor, expected: Tensor) -> float:
    """The worst row's root-mean-square error, relative to that of what is expected."""
    error = (output.double() - expected).square().mean(dim=-1).sqrt()
    return float((error / expected.square().mean(dim=-1).sqrt().clamp(min=1e-300)).max())
