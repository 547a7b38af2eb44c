"""Random heads to be normalised, rotated and stored, and what must come of them, in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EPS = 1e-6
SLOTS = 48  # of each sequence
MOVES = 4


@dataclass(frozen=True)
class Case:
    """Rows of several sequences, as many of each."""

    batch: int
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    splits: int = 1
    normed: bool = True
    norm_values: bool = False
    own_values: bool = True
    moves: bool = True

    def arguments(self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> list[Any]:
        """What the operator takes; caches are full of random numbers."""
        generator = torch.Generator(device).manual_seed(self.rows + 7 * self.head_dim)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device)

        count = self.batch * self.rows
        width = (self.heads + (1 + self.own_values) * self.kv_heads) * self.head_dim
        parts = normal(self.splits, 1, count, width)
        angles = normal(1, count, 1, self.head_dim // 2)
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()
        caches = [normal(self.kv_heads, self.batch * SLOTS, self.head_dim) for _ in "kv"]
        weights = [(1 + normal(self.head_dim) / 4).to(dtype) for _ in "qk"]
        return [
            parts.to(dtype) if self.splits == 1 else parts,
            cos,
            sin,
            *(weights if self.normed else (None, None)),
            *(cache.to(dtype) for cache in caches),
            self.own().to(device),
            *((moves.to(device) for moves in self.moved()) if self.moves else (None, None)),
            self.heads,
            self.norm_values,
            EPS,
        ]

    def own(self) -> Tensor:
        """Where rows are stored, int64 [batch * rows]: every second slot from 12 on."""
        first = SLOTS * torch.arange(self.batch).unsqueeze(1)
        return (first + 12 + 2 * torch.arange(self.rows)).flatten()

    def moved(self) -> tuple[Tensor, Tensor]:
        """Sources and targets, int64 [batch, MOVES].

        One entry stays, and the last two sources are where the tenth and the first row are stored.
        """
        first = SLOTS * torch.arange(self.batch).unsqueeze(1)
        return first + torch.tensor([3, 15, 30, 12]), first + torch.tensor([3, 8, 9, 10])


CASES = [
    Case(1, 1, 8, 4, 64, splits=3, norm_values=True),  # Gemma's sliding layers
    Case(1, 5, 4, 1, 128, splits=2, norm_values=True, own_values=False),  # and the others
    Case(2, 3, 4, 2, 32),  # Qwen3
    Case(3, 7, 6, 2, 64, splits=2, normed=False),  # Llama
    Case(2, 17, 2, 1, 16, splits=2),  # several tiles of a sequence
    Case(1, 9, 2, 2, 16, normed=False, moves=False),
]


def assert_close(case: Case, found: Tensor, after: list[Any], before: list[Any]) -> None:
    """Queries and caches are the exact ones' up to rounding, and untouched slots are the same."""
    parts, cos, sin, q_weight, k_weight, k_before, v_before, own, *moves = before[:10]
    product = parts.double().sum(0)[0].unflatten(-1, (-1, case.head_dim))
    q, k = product[:, : case.heads], product[:, case.heads : case.heads + case.kv_heads]
    v = product[:, -case.kv_heads :]
    if case.normed:
        q, k = normalised(q) * q_weight.double(), normalised(k) * k_weight.double()
    if case.norm_values:
        v = normalised(v)
    tolerance = {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found[0].double(), turned(q, cos, sin), **tolerance)
    for old, new, rows in ((k_before, after[5], turned(k, cos, sin)), (v_before, after[6], v)):
        wanted = old.double()
        if case.moves:
            wanted[:, moves[1].flatten()] = wanted[:, moves[0].flatten()]
        wanted[:, own] = rows.transpose(0, 1)
        torch.testing.assert_close(new.double(), wanted, **tolerance)
        rest = torch.ones(old.shape[1], dtype=torch.bool)
        rest[own.cpu()] = False
        assert torch.equal(new[:, rest].double(), wanted[:, rest]), "moves and others are exact"


def normalised(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + D / 2) as complex numbers: an oracle of another form."""
    half = x.shape[-1] // 2
    angle = torch.complex(cos[0, ..., :half].double(), sin[0, ..., half:].double())
    turned = torch.complex(x[..., :half], x[..., half:]) * angle
    return torch.cat((turned.real, turned.imag), dim=-1)


def copied(arguments: list[Any]) -> list[Any]:
    """With tensors of its own."""
    return [a.clone() if isinstance(a, Tensor) else a for a in arguments]


def row_alone(case: Case, arguments: list[Any], row: int) -> list[Any]:
    """The arguments of one row of the first sequence, with caches of their own."""
    parts, cos, sin, *weights = arguments[:5]
    caches, own, moves = arguments[5:7], arguments[7], arguments[8:10]
    here = slice(row, row + 1)
    return copied(
        [parts[:, :, here], cos[:, here], sin[:, here], *weights, *caches, own[here]]
        + [None if one is None else one[:1] for one in moves]
        + arguments[10:]
    )
