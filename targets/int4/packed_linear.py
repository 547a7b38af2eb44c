"""Linear layers over INT4 weights in the order that the GPU kernels read."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from eagle_aot.targets.int4.linear import Int4Linear
from eagle_aot.targets.int4.weight import Int4Weight, repeated
from eagle_aot.triton_kernels.int4_gemm import (
    GATED_ROWS,
    PackedInt4,
    choose_splits,
    int4_gated_linear,
    int4_linear,
    int4_linear_parts,
)


class PackedModule(nn.Module):
    """Base: a weight as `codes`, `scales` and `zeros` (or None) of `int4_gemm/packing.py`.

    `splits` is how K is split on a GPU of so many multiprocessors, whatever the rows of x.
    """

    codes: nn.Parameter
    scales: nn.Parameter
    zeros: nn.Parameter | None

    def __init__(self, weight: Int4Weight, multiprocessors: int) -> None:
        """Raises UnsupportedError for a weight that the kernels cannot read."""
        super().__init__()
        packed = weight.pack()
        self.out_features, columns = weight.shape
        self.in_features, self.digits = columns // weight.digits, weight.digits
        self.splits = choose_splits(packed.rows, packed.scales.shape[1], multiprocessors)
        # Parameters, which nothing trains: a method may write a buffer, so AOTInductor clones each.
        self.codes, self.scales = _frozen(packed.codes), _frozen(packed.scales)
        self.register_parameter("zeros", None if packed.zeros is None else _frozen(packed.zeros))

    def product(self, x: Tensor) -> Tensor:
        """`x` bfloat16 [1, M, K] -> [1, M, N]."""
        return int4_linear(*self._factors(x), self.splits)

    def parts(self, x: Tensor) -> Tensor:
        """`x` bfloat16 [1, M, K] -> [S, 1, M, N], of which `product` is the sum."""
        return int4_linear_parts(*self._factors(x), self.splits)

    def _factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
        x = repeated(x, self.digits)
        return x, self.codes, self.scales, self.zeros, self.out_features


class PackedInt4Linear(PackedModule):
    """An `Int4Linear` after packing. With `in_parts` whoever comes next adds them up."""

    in_parts = False

    def forward(self, x: Tensor) -> Tensor:
        """`x` bfloat16 [1, M, K] -> [1, M, N], or parts of it [S, 1, M, N]."""
        return self.parts(x) if self.in_parts else self.product(x)

    def dense(self) -> nn.Linear:
        """The same layer with its weight dequantised."""
        shape = self.out_features, self.digits * self.in_features
        packed = PackedInt4(self.codes, self.scales, self.zeros, *shape)
        return Int4Linear(Int4Weight.unpack(packed, self.digits), self.scales.dtype).dense()


class PackedProjections(PackedModule):
    """Several linears of one input as one, such as q, k and v: their rows one after another."""

    def __init__(self, weights: Sequence[Int4Weight], multiprocessors: int) -> None:
        """Weights of one group size and of as many digits. Raises as `PackedModule`."""
        super().__init__(concatenated(weights), multiprocessors)
        ends = [0, *accumulate(weight.shape[0] for weight in weights)]
        self.columns = tuple(slice(first, end) for first, end in pairwise(ends))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """`x` bfloat16 [1, M, K] -> [1, M, N] of each linear, views of one tensor."""
        product = self.product(x)
        return tuple(product[..., columns] for columns in self.columns)


class PackedGatedInt4(PackedModule):
    """Gate and up projection of a gated MLP as one, with the activation: `act(gate) * up`."""

    def __init__(
        self, gate: Int4Weight, up: Int4Weight, activation: str, multiprocessors: int
    ) -> None:
        """Weights of one shape, group size and number of digits; `GATED_ROWS` divides their rows.

        `activation` is as for `int4_gated_linear`. Raises UnsupportedError as `PackedModule`.
        """
        super().__init__(interleaved(gate, up), multiprocessors)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """`x` bfloat16 [1, M, K] -> [1, M, N of the gate]."""
        return int4_gated_linear(*self._factors(x), self.splits, self.activation)


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def concatenated(weights: Sequence[Int4Weight]) -> Int4Weight:
    """The rows of all, in order."""
    return Int4Weight(
        qdata=torch.cat([weight.qdata for weight in weights]),
        scale=torch.cat([weight.scale for weight in weights], dim=1),
        zero_point=torch.cat([weight.zero_point for weight in weights], dim=1),
        digits=weights[0].digits,
    )


def interleaved(gate: Int4Weight, up: Int4Weight) -> Int4Weight:
    """`GATED_ROWS` rows of the gate, as many of up, and so on."""

    def rows(first: Tensor, second: Tensor, dim: int) -> Tensor:
        parts = [x.unflatten(dim, (-1, GATED_ROWS)) for x in (first, second)]
        return torch.stack(parts, dim=dim + 1).flatten(dim, dim + 2)

    return Int4Weight(
        qdata=rows(gate.qdata, up.qdata, 0),
        scale=rows(gate.scale, up.scale, 1),
        zero_point=rows(gate.zero_point, up.zero_point, 1),
        digits=gate.digits,
    )
