"""Random heads to normalise, rotate and store, and the expected result in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_aot.triton_kernels.kv_int8 import quantize_entries, read_entries
from support.kernels.sdpa_cases import by_token

EPS = 1e-6
SLOTS = 48  # of each sequence
MOVES = 4


@dataclass(frozen=True)
class Case:
    """Rows of `batch` sequences, with `rows` rows each."""

    batch: int
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    splits: int = 1
    normed: bool = True
    norm_values: bool = False
    has_values: bool = True
    moves: bool = True
    int8: bool = False
    by_token: bool = False

    def arguments(self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> list[Any]:
        """Return the arguments of the operator; caches are full of random numbers."""
        generator = torch.Generator(device).manual_seed(self.rows + 7 * self.head_dim)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device)

        count = self.batch * self.rows
        width = (self.heads + (1 + self.has_values) * self.kv_heads) * self.head_dim
        parts = normal(self.splits, 1, count, width)
        angles = normal(1, count, 1, self.head_dim // 2)
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()
        caches = [normal(self.kv_heads, self.batch * SLOTS, self.head_dim) for _ in "kv"]
        caches = [quantize_entries(cache) if self.int8 else cache.to(dtype) for cache in caches]
        weights = [(1 + normal(self.head_dim) / 4).to(dtype) for _ in "qk"]
        return [
            parts.to(dtype) if self.splits == 1 else parts,
            cos,
            sin,
            *(weights if self.normed else (None, None)),
            *(by_token(cache) if self.by_token else cache for cache in caches),
            self.row_slots().to(device),
            *((moves.to(device) for moves in self.moved()) if self.moves else (None, None)),
            self.heads,
            self.norm_values,
            EPS,
            dtype,
        ]

    def row_slots(self) -> Tensor:
        """Return the slots of rows, int64 [batch * rows]: every second slot from 12 on."""
        first = SLOTS * torch.arange(self.batch).unsqueeze(1)
        return (first + 12 + 2 * torch.arange(self.rows)).flatten()

    def moved(self) -> tuple[Tensor, Tensor]:
        """Return sources and targets, int64 [batch, MOVES].

        One entry stays, and the last two sources are the slots of the tenth and the first row.
        """
        first = SLOTS * torch.arange(self.batch).unsqueeze(1)
        return first + torch.tensor([3, 15, 30, 12]), first + torch.tensor([3, 8, 9, 10])


CASES = [
    Case(1, 1, 8, 4, 64, splits=3, norm_values=True),  # Gemma's sliding layers
    Case(1, 5, 4, 1, 128, splits=2, norm_values=True, has_values=False),  # and the others
    Case(2, 3, 4, 2, 32),  # Qwen3
    Case(3, 7, 6, 2, 64, splits=2, normed=False),  # Llama
    Case(2, 17, 2, 1, 16, splits=2),  # several tiles of a sequence
    Case(1, 9, 2, 2, 16, normed=False, moves=False),
    Case(2, 9, 4, 2, 64, norm_values=True, int8=True),
    Case(2, 9, 4, 2, 64, norm_values=True, by_token=True),
    Case(3, 9, 4, 4, 32, int8=True, by_token=True),
]


def assert_close(case: Case, queries: Tensor, after: list[Any], before: list[Any]) -> None:
    """Check queries [1, R, heads, D] and caches against float64; other slots must not change."""
    parts, cos, sin, q_weight, k_weight, k_before, v_before, slots, *moves = before[:10]
    product = parts.double().sum(0)[0].unflatten(-1, (-1, case.head_dim))
    q, k = product[:, : case.heads], product[:, case.heads : case.heads + case.kv_heads]
    v = product[:, -case.kv_heads :]
    if case.normed:
        q, k = normalise(q) * q_weight.double(), normalise(k) * k_weight.double()
    if case.norm_values:
        v = normalise(v)
    torch.testing.assert_close(queries[0].double(), rotate(q, cos, sin), rtol=2e-2, atol=2e-2)
    for old, new, rows in ((k_before, after[5], rotate(k, cos, sin)), (v_before, after[6], v)):
        expected, stored = read_entries(old, torch.float64), read_entries(new, torch.float64)
        if case.moves:
            expected[:, moves[1].flatten()] = expected[:, moves[0].flatten()]
        expected[:, slots] = rows.transpose(0, 1)
        tolerance = 4e-2 if case.int8 else 2e-2
        torch.testing.assert_close(stored, expected, rtol=2e-2, atol=tolerance)
        rest = torch.ones(old.shape[1], dtype=torch.bool)
        rest[slots.cpu()] = False
        assert torch.equal(stored[:, rest], expected[:, rest]), "moves and others are exact"


def normalise(x: Tensor) -> Tensor:
    """Divide heads [..., D] by their root mean squares."""
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + D / 2) of x [R, heads, D] as complex numbers."""
    half = x.shape[-1] // 2
    angle = torch.complex(cos[0, ..., :half].double(), sin[0, ..., half:].double())
    rotated = torch.complex(x[..., :half], x[..., half:]) * angle
    return torch.cat((rotated.real, rotated.imag), dim=-1)


def copied(arguments: list[Any]) -> list[Any]:
    """Return the arguments with copies of the tensors."""
    return [a.clone() if isinstance(a, Tensor) else a for a in arguments]


def row_alone(case: Case, arguments: list[Any], row: int) -> list[Any]:
    """Return the arguments for one row of the first sequence, with copies of the caches."""
    parts, cos, sin, *weights = arguments[:5]
    caches, slots, moves = arguments[5:7], arguments[7], arguments[8:10]
    rows = slice(row, row + 1)
    return copied(
        [parts[:, :, rows], cos[:, rows], sin[:, rows], *weights, *caches, slots[rows]]
        + [None if indices is None else indices[:1] for indices in moves]
        + arguments[10:]
    )
