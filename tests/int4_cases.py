"""Random INT4 linears and what their product must be, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import dequantise_int4


@dataclass(frozen=True)
class Case:
    """A weight [n, k] in groups of `group`, and the dtype of activations and scales."""

    n: int
    k: int
    group: int
    dtype: torch.dtype

    def weight(
        self, device: str = "cpu", integer_zeros: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """qdata [n, k / 2], scale and zero point [k / group, n]."""
        generator = torch.Generator(device).manual_seed(self.n + self.group)
        shape = self.k // self.group, self.n
        qdata = torch.randint(
            0, 256, (self.n, self.k // 2), generator=generator, dtype=torch.uint8, device=device
        )
        scale = torch.rand(shape, generator=generator, device=device) + 0.1
        zero_point = 15 * torch.rand(shape, generator=generator, device=device)
        if integer_zeros:
            zero_point = zero_point.round()
        return qdata, scale.to(self.dtype), zero_point.to(self.dtype)

    def rows(self, m: int, device: str = "cpu") -> Tensor:
        """Activations [1, m, k]."""
        generator = torch.Generator(device).manual_seed(self.k)
        x = torch.randn(1, m, self.k, generator=generator, device=device)
        return x.to(self.dtype)


def float64_product(
    x: Tensor, weight: tuple[Tensor, Tensor, Tensor], block: int = 1024
) -> tuple[Tensor, Tensor]:
    """x W^T and |x| |W|^T in float64, `block` rows of W at a time: they need not fit densely."""
    qdata, scale, zero_point = weight
    products, magnitudes = [], []
    for first in range(0, qdata.shape[0], block):
        rows = slice(first, first + block)
        scales, zeros = scale[:, rows].double(), zero_point[:, rows].double()
        dense = dequantise_int4(qdata[rows], scales, zeros).t()
        products.append(x.double() @ dense)
        magnitudes.append(x.double().abs() @ dense.abs())
    return torch.cat(products, dim=-1), torch.cat(magnitudes, dim=-1)


def assert_float32_sums(
    output: Tensor, x: Tensor, weight: tuple[Tensor, Tensor, Tensor], slack: float
) -> None:
    """`output` is the product, summed in float32 and rounded once to its own dtype.

    `slack` bounds the sums' error relative to the sum of magnitudes.
    """
    expected, magnitude = float64_product(x, weight)
    bound = 0.51 * torch.finfo(output.dtype).eps * expected.abs() + slack * magnitude
    assert output.dtype == x.dtype and output.shape == expected.shape
    assert bool(((output.double() - expected).abs() <= bound).all())
