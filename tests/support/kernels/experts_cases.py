"""Random INT4 experts, routes, and their expected results in float64."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_experts import PackedExpertsWeight, pack_experts
from eagle_aot.triton_kernels.int4_gemm import dequantise_int4
from support.kernels.int4_cases import Canonical, Case

Packed = tuple[Tensor, Tensor, Tensor | None, int]


@dataclass(frozen=True)
class Experts:
    """`count` gated MLPs from `hidden` to `inner` and back, and `top_k` of them for each row."""

    count: int
    top_k: int
    hidden: int
    inner: int
    groups: tuple[int, int] = (32, 32)
    symmetric: bool = False
    activation: str = "gelu_tanh"

    def canonical(self, device: str = "cpu") -> tuple[list[Canonical], list[Canonical]]:
        """Return the weights [2 inner, hidden], eight rows of gate and of up in turn, and [hidden,
        inner]; each expert has others."""
        first, second = self.groups
        return (
            self._stack(Case(2 * self.inner, self.hidden, first, self.symmetric), device),
            self._stack(Case(self.hidden, self.inner, second, self.symmetric), device),
        )

    def _stack(self, case: Case, device: str) -> list[Canonical]:
        qdata, scale, zero = case.weight(device)
        scale = scale / (8 * case.k**0.5)
        return [(qdata.roll(7 * e, 0) ^ e % 16, scale.roll(e, 1), zero) for e in range(self.count)]

    @cache  # noqa: B019 - a few cases of a test run
    def packed(self, device: str = "cpu") -> tuple[Packed, Packed]:
        first, second = (
            pack_experts(*(torch.stack(parts) for parts in zip(*stack, strict=True)))
            for stack in self.canonical(device)
        )
        return tensors(first), tensors(second)

    def rows(self, rows: int, device: str = "cpu") -> Tensor:
        generator = torch.Generator(device).manual_seed(rows)
        return torch.randn(rows, self.hidden, generator=generator, device=device).bfloat16()

    def routes(self, rows: int, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return weights float32 and ids int64 [rows, top_k]; low experts are taken by most."""
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(rows, self.count, generator=generator)
        scores -= torch.arange(self.count) * 3 / self.count
        values, ids = scores.topk(self.top_k)
        return values.softmax(-1).to(device), ids.to(device)


def tensors(weight: PackedExpertsWeight) -> Packed:
    return weight.codes, weight.scales, weight.zeros, weight.rows


def float64_mixture(case: Experts, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Return the mixture of the experts of `x` [M, H] in float64, with the hidden values and the
    weights of linears rounded to bfloat16: [M, H]."""
    stacks = case.canonical(x.device.type)
    out = torch.zeros_like(x, dtype=torch.float64)
    for row in range(len(x)):
        for weight, expert in zip(weights[row].double(), ids[row].tolist(), strict=True):
            gate_up, down = (dequantise_int4(*stack[expert]).double() for stack in stacks)
            both = (gate_up @ x[row].double()).view(-1, 2, 8)
            gate, up = both[:, 0].flatten(), both[:, 1].flatten()
            if case.activation == "silu":
                hidden = gate / (1 + torch.exp(-gate)) * up
            else:
                inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
                hidden = 0.5 * gate * (1 + torch.tanh(inner)) * up
            out[row] += weight * (down @ hidden.bfloat16().double())
    return out
