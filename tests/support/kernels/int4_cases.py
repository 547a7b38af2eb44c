"""Random INT4 linears and their expected products in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import PackedInt4, dequantise_int4, pack

Canonical = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A bfloat16 weight [n, k] in groups of `group`."""

    n: int
    k: int
    group: int
    symmetric: bool = False

    def weight(self, device: str = "cpu", integer_zeros: bool = True) -> Canonical:
        """Return qdata [n, k / 2], scale and zero point [k / group, n]."""
        generator = torch.Generator(device).manual_seed(self.n + self.group)
        shape = self.k // self.group, self.n
        qdata = torch.randint(
            0, 256, (self.n, self.k // 2), generator=generator, dtype=torch.uint8, device=device
        )
        scale = torch.rand(shape, generator=generator, device=device) + 0.1
        zero_point = 15 * torch.rand(shape, generator=generator, device=device)
        if self.symmetric:
            zero_point = torch.full_like(zero_point, 8)
        elif integer_zeros:
            zero_point = zero_point.round()
        return qdata, scale.bfloat16(), zero_point.bfloat16()

    def packed(self, device: str = "cpu") -> PackedInt4:
        return pack(*self.weight(device))

    def rows(self, m: int, device: str = "cpu") -> Tensor:
        """Return activations bfloat16 [1, m, k]."""
        generator = torch.Generator(device).manual_seed(self.k)
        return torch.randn(1, m, self.k, generator=generator, device=device).bfloat16()


def tensors(weight: PackedInt4) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """Return codes, scales, zeros (or None) and the number of rows of a packed weight."""
    return weight.codes, weight.scales, weight.zeros, weight.rows


def float64_product(x: Tensor, weight: Canonical, block: int = 1024) -> tuple[Tensor, Tensor]:
    """Return x W^T and |x| |W|^T in float64 [..., n], computed by `block` rows of W at a time."""
    qdata, scale, zero_point = weight
    products, magnitudes = [], []
    for first in range(0, qdata.shape[0], block):
        rows = slice(first, first + block)
        scales, zeros = scale[:, rows].double(), zero_point[:, rows].double()
        dense = dequantise_int4(qdata[rows], scales, zeros).t()
        products.append(x.double() @ dense)
        magnitudes.append(x.double().abs() @ dense.abs())
    return torch.cat(products, dim=-1), torch.cat(magnitudes, dim=-1)


def assert_rounded_weight(output: Tensor, x: Tensor, weight: Canonical, slack: float) -> None:
    """Check that `output` [..., n] is x times the weight rounded to bfloat16, summed in float32.

    `slack` bounds the error of sums relative to the sum of magnitudes.
    """
    dense = dequantise_int4(*weight).t().double()
    expected = x.double() @ dense
    bound = 0.51 * torch.finfo(output.dtype).eps * expected.abs()
    bound += slack * (x.double().abs() @ dense.abs())
    assert output.shape == expected.shape
    assert bool(((output.double() - expected).abs() <= bound).all())


def float64_gated(x: Tensor, weight: Canonical, activation: str) -> Tensor:
    """Return `act(gate) * up` in float64 [..., n / 2], for eight gate rows before eight up rows."""
    product, _ = float64_product(x, weight)
    pairs = product.unflatten(-1, (-1, 2, 8))
    gate, up = pairs[..., 0, :], pairs[..., 1, :]
    if activation == "silu":
        gate = gate / (1 + torch.exp(-gate))
    else:
        inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        gate = 0.5 * gate * (1 + torch.tanh(inner))
    return (gate * up).flatten(-2)
