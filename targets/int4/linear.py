"""Linear layers over INT4 weights, in the canonical layout and packed for the GPU kernels."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from eagle_aot.targets.int4.weight import Int4Weight, arrange_input
from eagle_aot.triton_kernels.int4_gemm import (
    FULL,
    FULL_IF_GATED,
    GATED_ROWS,
    PackedInt4,
    choose_splits,
    int4_gated_linear,
    int4_linear,
    int4_linear_parts,
    int4_linear_reference,
)


class Int4Linear(nn.Module):
    """A bias-free `nn.Linear` with an INT4 or INT8 weight; activations keep their dtype.

    It dequantises the weight in every forward. `PackedInt4Linear` is the form for the GPU kernels.
    """

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor
    order: Tensor | None

    def __init__(self, weight: Int4Weight, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, columns = weight.shape
        self.in_features, self.digits = columns // weight.digits, weight.digits
        self.group_size = weight.group_size
        self.register_buffer("qdata", weight.qdata)
        self.register_buffer("scale", weight.scale.to(dtype))
        self.register_buffer("zero_point", weight.zero_point.to(dtype))
        self.register_buffer("order", weight.order)

    @property
    def weight(self) -> Int4Weight:
        """The weight, with scale and zero point in the layer's dtype."""
        return Int4Weight(
            self.qdata, self.scale, self.zero_point, digits=self.digits, order=self.order
        )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x` [1, M, K]: [1, M, N]."""
        x = arrange_input(x, self.digits, self.order)
        return int4_linear_reference(x, self.qdata, self.scale, self.zero_point)

    def dense(self) -> nn.Linear:
        """Return the layer with its weight dequantised."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight.dense(), requires_grad=False)
        return linear


class Biased(nn.Module):
    """A bias-free linear and a bias that is added to its output."""

    bias: Tensor

    def __init__(self, linear: nn.Module, bias: Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x` [1, M, K] and add the bias: [1, M, N]."""
        return self.linear(x) + self.bias


def rows_of(linear: nn.Module, rows: Tensor) -> nn.Module:
    """Return the linear of some rows int64 [N] of another, or of all in another order."""
    if isinstance(linear, Biased):
        return Biased(rows_of(linear.linear, rows), linear.bias[rows])
    if isinstance(linear, Int4Linear):
        return Int4Linear(linear.weight.with_rows(rows), linear.scale.dtype)
    assert isinstance(linear, nn.Linear)
    bias = linear.bias
    part = nn.Linear(linear.in_features, len(rows), bias=bias is not None, device="meta")
    part.weight = nn.Parameter(linear.weight.detach()[rows], requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias.detach()[rows], requires_grad=False)
    return part


class PackedModule(nn.Module):
    """Base class: a weight as `codes`, `scales` and `zeros` (or None) of `int4_gemm/packing.py`.

    `splits` is the number of parts of K; it depends on the GPU and the weight, not on the input.
    `full` is that of `choose_splits`.
    """

    full = FULL
    codes: nn.Parameter
    scales: nn.Parameter
    zeros: nn.Parameter | None
    order: nn.Parameter | None

    def __init__(self, weight: Int4Weight, multiprocessors: int) -> None:
        """Raise UnsupportedError for a weight that the kernels cannot read."""
        super().__init__()
        packed = weight.pack()
        self.out_features, columns = weight.shape
        self.in_features, self.digits = columns // weight.digits, weight.digits
        steps = packed.scales.shape[1]
        self.splits = choose_splits(packed.rows, steps, multiprocessors, self.full)
        # Parameters, not buffers: a method may write a buffer, so AOTInductor clones each of them.
        self.codes, self.scales = _frozen(packed.codes), _frozen(packed.scales)
        self.register_parameter("zeros", None if packed.zeros is None else _frozen(packed.zeros))
        self.register_parameter("order", None if weight.order is None else _frozen(weight.order))

    def arrange(self, x: Tensor) -> Tensor:
        """Return what the stored columns multiply of `x` [1, M, K]."""
        return arrange_input(x, self.digits, self.order)

    def product(self, x: Tensor) -> Tensor:
        """Multiply `x` bfloat16 [1, M, K]: [1, M, N]."""
        x = self.arrange(x)
        return int4_linear(x, self.codes, self.scales, self.zeros, self.out_features, self.splits)

    def parts(self, x: Tensor) -> Tensor:
        """Multiply `x` bfloat16 [1, M, K] in parts, whose sum is `product`: [S, 1, M, N]."""
        return int4_linear_parts(
            self.arrange(x),
            self.codes,
            self.scales,
            self.zeros,
            self.out_features,
            self.splits,
        )


class PackedInt4Linear(PackedModule):
    """An `Int4Linear` after packing. With `returns_parts` the caller adds up the parts."""

    returns_parts = False

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x` bfloat16 [1, M, K]: [1, M, N], or parts of that, [S, 1, M, N]."""
        return self.parts(x) if self.returns_parts else self.product(x)

    def dense(self) -> nn.Linear:
        """Return the layer with its weight dequantised."""
        columns = self.digits * self.in_features
        packed = PackedInt4(self.codes, self.scales, self.zeros, self.out_features, columns)
        weight = Int4Weight.unpack(packed, self.digits, self.order)
        return Int4Linear(weight, self.scales.dtype).dense()


class PackedProjections(PackedModule):
    """Several linears of one input as one, such as q, k and v, with their rows concatenated."""

    bias: nn.Parameter | None

    def __init__(
        self,
        weights: Sequence[Int4Weight],
        multiprocessors: int,
        biases: Sequence[Tensor | None] = (),
    ) -> None:
        """All weights have one group size, number of digits and order; `biases` [N] are of the
        scales' dtype, or None. Raises as `PackedModule`."""
        super().__init__(concatenate(weights), multiprocessors)
        ends = [0, *accumulate(weight.shape[0] for weight in weights)]
        self.columns = tuple(slice(first, end) for first, end in pairwise(ends))
        bias = self.scales.new_zeros(self.out_features)
        for columns, values in zip(self.columns, biases, strict=False):
            if values is not None:
                bias[columns] = values
        has_bias = any(values is not None for values in biases)
        self.register_parameter("bias", _frozen(bias) if has_bias else None)

    def product(self, x: Tensor) -> Tensor:
        product = super().product(x)
        return product if self.bias is None else product + self.bias

    def parts(self, x: Tensor) -> Tensor:
        """Multiply as `PackedModule` does; with a bias there is a single part, [1, 1, M, N]."""
        return super().parts(x) if self.bias is None else self.product(x).unsqueeze(0)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Multiply `x` bfloat16 [1, M, K]: [1, M, N] for each linear, views of one tensor."""
        product = self.product(x)
        return tuple(product[..., columns] for columns in self.columns)


class PackedGatedInt4(PackedModule):
    """The gate and up projections of a gated MLP as one, with the activation: `act(gate) * up`."""

    full = FULL_IF_GATED

    def __init__(
        self, gate: Int4Weight, up: Int4Weight, activation: str, multiprocessors: int
    ) -> None:
        """Both have one shape, group size, number of digits and order; `GATED_ROWS` divides N.

        `activation` is that of `int4_gated_linear`. Raises UnsupportedError as `PackedModule`.
        """
        super().__init__(interleave(gate, up), multiprocessors)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x` bfloat16 [1, M, K]: `act(gate) * up`, [1, M, N]."""
        return int4_gated_linear(
            self.arrange(x),
            self.codes,
            self.scales,
            self.zeros,
            self.out_features,
            self.splits,
            self.activation,
        )


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def concatenate(weights: Sequence[Int4Weight]) -> Int4Weight:
    """Concatenate the rows of several weights."""
    return Int4Weight(
        qdata=torch.cat([weight.qdata for weight in weights]),
        scale=torch.cat([weight.scale for weight in weights], dim=1),
        zero_point=torch.cat([weight.zero_point for weight in weights], dim=1),
        digits=weights[0].digits,
        order=weights[0].order,
    )


def interleave(gate: Int4Weight, up: Int4Weight) -> Int4Weight:
    """Alternate `GATED_ROWS` rows of the gate with as many of up."""

    def rows(first: Tensor, second: Tensor, dim: int) -> Tensor:
        parts = [x.unflatten(dim, (-1, GATED_ROWS)) for x in (first, second)]
        return torch.stack(parts, dim=dim + 1).flatten(dim, dim + 2)

    return Int4Weight(
        qdata=rows(gate.qdata, up.qdata, 0),
        scale=rows(gate.scale, up.scale, 1),
        zero_point=rows(gate.zero_point, up.zero_point, 1),
        digits=gate.digits,
        order=gate.order,
    )
