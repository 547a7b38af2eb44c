"""Rows of a gated delta net around its rule, and the expected results in float64."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

SLOTS, TAPS, MOVES = 48, 4, 4
"""Slots of each text, and tokens that the convolution adds up."""


@dataclass(frozen=True)
class Case:
    """Rows of `batch` texts, with `rows` rows each."""

    batch: int
    rows: int
    key_heads: int = 2
    heads: int = 4
    key_dim: int = 16
    value_dim: int = 32
    splits: int = 1
    moves: bool = True

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.heads * self.value_dim

    @property
    def terms(self) -> int:
        return self.channels - self.keys + 2 * self.heads

    def arguments(self, device: str = "cpu", dtype: torch.dtype = torch.float16) -> list[Any]:
        """Return the arguments of the operator; buffers are full of random numbers. Rows are a
        chain, but for the third one, whose path leaves out the second."""
        generator = torch.Generator().manual_seed(self.rows + 7 * self.key_dim)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        width = self.channels + self.heads * self.value_dim + 2 * self.heads
        parts = normal(self.splits, 1, self.batch * self.rows, width)
        tensors = [
            parts.to(dtype) if self.splits == 1 else parts,
            *(x.to(dtype) for x in (normal(self.channels, 1, TAPS), *normal(2, self.heads))),
            normal(self.batch * SLOTS, self.channels),
            normal(self.batch * SLOTS, self.terms),
            self.by_text(12 + 2 * torch.arange(self.rows)).flatten(),
            *self.taps(),
        ]
        moves = (self.by_text(torch.tensor(x)) for x in ([3, 15, 30, 12], [3, 8, 9, 10]))
        tensors += moves if self.moves else ()
        none = () if self.moves else (None, None)
        return [*(x.to(device) for x in tensors), *none, self.key_dim]

    def by_text(self, slots: Tensor) -> Tensor:
        """Return slots [...] for each text: [batch, ...]."""
        first = SLOTS * torch.arange(self.batch)
        return slots + first.view(-1, *[1] * slots.ndim)

    def taps(self) -> tuple[Tensor, Tensor]:
        """Return slots and which exist: before the rows are slots 8 to 10, and one is missing."""
        path = torch.cat((torch.tensor([8, 9, 10]), 12 + 2 * torch.arange(self.rows)))
        slots = torch.stack([path[row : row + TAPS] for row in range(self.rows)])
        if self.rows > 2:
            slots[2] = path[[1, 2, 3, 5]]
        exist = torch.ones(self.batch * self.rows, TAPS, 1, dtype=torch.bool)
        exist[:1, 0] = False
        return self.by_text(slots).flatten(), exist

    def row_alone(self, row: int) -> Self:
        """Return the case of the first rows of the first text up to `row`."""
        return replace(self, batch=1, rows=row + 1)


CASES = [
    Case(1, 1, splits=3),
    Case(2, 5, splits=2),
    Case(3, 7, key_heads=1, heads=2, value_dim=16),
    Case(2, 17, key_dim=32, value_dim=16),  # several tiles
    Case(1, 9, moves=False),
]


def expected(case: Case, arguments: list[Any]) -> tuple[Tensor, ...]:
    """Return queries, terms and both buffers afterwards in float64, computed row by row."""
    parts, weight, bias, log, *buffers, slots, taps, exist, sources, targets, _ = arguments
    product = parts.double().sum(0)[0].to(weight.dtype).double()
    sizes = case.channels, case.heads * case.value_dim, case.heads, case.heads
    channels, _, b, a = product.split(sizes, dim=1)
    inputs, terms = (buffer.double() for buffer in buffers)
    if case.moves:
        for buffer in (inputs, terms):
            buffer[targets.flatten()] = buffer[sources.flatten()]
    inputs[slots] = channels
    queries, new = [], []
    for row in range(len(slots)):
        own = slice(row * TAPS, (row + 1) * TAPS)
        tokens = inputs[taps[own]] * exist[row]
        mixed = F.silu((tokens * weight[:, 0].double().T).sum(0))
        query, key, value = mixed.split((case.keys, case.keys, case.heads * case.value_dim))
        unit = [F.normalize(x.view(-1, case.key_dim), dim=1).flatten() for x in (query, key)]
        decay = torch.exp(-log.double().exp() * F.softplus(a[row] + bias.double()))
        queries.append(unit[0] / case.key_dim**0.5)
        new.append(torch.cat((unit[1], value, decay, b[row].sigmoid())))
    terms[slots] = torch.stack(new)
    return torch.stack(queries), torch.stack(new), inputs, terms


def assert_close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.double() - theirs).norm() < 3e-4 * theirs.norm()


def expected_output(read: Tensor, parts: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return what the rule's reads become, [1, R, values] in float64."""
    rows, heads, value_dim = read.shape
    end = parts.shape[-1] - 2 * heads
    gates = parts.double().sum(0)[0].to(weight.dtype).double()[:, end - heads * value_dim : end]
    normed = F.rms_norm(read.double(), (value_dim,), weight.double(), eps)
    return (normed.view(rows, -1) * F.silu(gates))[None]


def output_arguments(case: Case, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, float]:
    """Return arguments of the operator after the rule."""
    generator = torch.Generator().manual_seed(case.rows)
    read = torch.randn(case.batch * case.rows, case.heads, case.value_dim, generator=generator)
    dtype = torch.float16 if device == "cpu" else torch.bfloat16
    weight = torch.rand(case.value_dim, generator=generator).to(dtype)
    parts = case.arguments(device, dtype)[0]
    return read.to(device), parts, weight.to(device), 1e-6


def copied(arguments: list[Any]) -> list[Any]:
    """Return the arguments with copies of the tensors."""
    return [a.clone() if isinstance(a, Tensor) else a for a in arguments]


def cut(arguments: list[Any], fewer: Case) -> list[Any]:
    """Return the arguments of the first rows of the first text."""
    parts, *weights, inputs, terms, slots, taps, exist, sources, targets, dim = arguments
    rows = fewer.rows
    moves = (None, None) if sources is None else (sources[:1], targets[:1])
    cuts = slots[:rows], taps[: rows * exist.shape[1]], exist[:rows]
    return [parts[:, :, :rows], *weights, inputs, terms, *cuts, *moves, dim]
