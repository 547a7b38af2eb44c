"""The canonical layout of a group-quantised INT4 weight, and the packing of its codes."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.triton_kernels.int4_gemm import (
    PackedInt4,
    dequantise_int4,
    pack,
    packable_group,
    unpack,
)

BASE = 16
"""What a high digit of an INT8 weight counts."""
SAMPLED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A weight [N, K], `(code - zero_point) * scale`, with a scale per group of g consecutive k.

    qdata uint8 [N, K / 2] holds codes 0..15, even k in the low nibble; scale and zero_point are
    float [K / g, N]. Symmetric weights have zero_point 8 everywhere. This is the layout of
    ExecuTorch's `ExportableInt4Tensor`.

    An INT8 weight has two `digits` (`of_bytes`, `quantisers.py`): K counts the columns of both, and
    its input is repeated once per digit. `order` int64 [K] is the input column that each stored
    column multiplies, None if they are in order; it has the columns of one digit.
    """

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor
    digits: int = field(default=1, kw_only=True)
    order: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        rows, half = self.qdata.shape
        shape = self.scale.shape
        groups = shape[0] if shape[1:] == (rows,) else 0
        if not groups or self.zero_point.shape != shape:
            raise CheckpointError(
                f"INT4 weight of {rows} rows: scale {list(self.scale.shape)} and zero point "
                f"{list(self.zero_point.shape)} must both be [groups, {rows}]"
            )
        if (2 * half) % groups:
            raise CheckpointError(f"INT4 weight: {2 * half} columns in {groups} equal groups")

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        return self.qdata.shape[0], 2 * self.qdata.shape[1]

    @property
    def group_size(self) -> int:
        return 2 * self.qdata.shape[1] // self.scale.shape[0]

    @property
    def unpackable_reason(self) -> str | None:
        """Why the GPU kernels cannot read the weight, and what to do; None if they can."""
        if packable_group(self.group_size) is None:
            return (
                f"groups of {self.group_size} columns, the GPU kernels read multiples of 32: "
                "quantise with such a group size"
            )
        if self.scale.dtype != torch.bfloat16:
            dtype = str(self.scale.dtype).removeprefix("torch.")
            return f"{dtype} scales, the GPU kernels compute in bfloat16: load it with that dtype"
        return None

    def pack(self) -> PackedInt4:
        """Return the weight in the order that the GPU kernels read, on its own device.

        A GPU does the packing if there is one: a host takes a minute for a model of 60 layers.
        Raises UnsupportedError if there is an `unpackable_reason`.
        """
        if self.unpackable_reason:
            raise UnsupportedError(f"INT4 weight: {self.unpackable_reason}")
        if not torch.cuda.is_available() or isinstance(self.qdata, FakeTensor):
            return pack(self.qdata, self.scale, self.zero_point)
        packed = pack(self.qdata.cuda(), self.scale.cuda(), self.zero_point.cuda())
        return packed.to(self.qdata.device)

    @classmethod
    def unpack(
        cls, packed: PackedInt4, digits: int = 1, order: Tensor | None = None
    ) -> "Int4Weight":
        """Undo `pack`, bit for bit; a group of more than 128 columns becomes several equal ones."""
        qdata, scale, zero_point = unpack(packed)
        return cls(qdata, scale, zero_point, digits=digits, order=order)

    @classmethod
    def of_codes(
        cls, codes: Tensor, scale: Tensor, zero: Tensor, bits: int, order: Tensor | None = None
    ) -> "Int4Weight":
        """Make a weight of uint8 codes [N, K] of 4 or 8 bits; scale and zero are [K / g, N].

        A code of 8 bits is `16 high + low`, and so is its zero point, which is exact in any dtype.
        """
        codes = codes if order is None else codes[:, order]
        if bits == 4:
            return cls(bytes_of_codes(codes), scale, zero, order=order)
        high = (zero / BASE).floor()
        return cls(
            bytes_of_codes(torch.cat((codes >> 4, codes & 0xF), dim=1)),
            torch.cat((BASE * scale, scale)),
            torch.cat((high, zero - BASE * high)),
            digits=2,
            order=order,
        )

    def with_rows(self, rows: Tensor | slice) -> "Int4Weight":
        """Return the weight of some of the rows, or of all in another order."""
        scale, zero = self.scale[:, rows], self.zero_point[:, rows]
        return replace(self, qdata=self.qdata[rows], scale=scale, zero_point=zero)

    def with_groups(self, groups: Tensor) -> "Int4Weight":
        """Return the weight with its groups of columns in the order `groups` int64 [K / g]."""
        qdata = self.qdata.unflatten(1, (len(groups), -1))[:, groups].flatten(1)
        return replace(
            self, qdata=qdata, scale=self.scale[groups], zero_point=self.zero_point[groups]
        )

    def mean_steps(self) -> float:
        """Return the mean weight of a sample of rows, in steps of the grid of its last digit."""
        sample = self.with_rows(slice(None, None, max(1, len(self.qdata) // SAMPLED_ROWS)))
        ones, zero = torch.ones_like(sample.scale), sample.zero_point
        return float(dequantise_int4(sample.qdata, ones, zero).mean())

    def dense(self) -> Tensor:
        """Dequantise to [N, K], digits added up, columns in order, in the dtype of the scales."""
        weight = dequantise_int4(self.qdata, self.scale, self.zero_point)
        weight = weight if self.digits == 1 else weight.unflatten(1, (self.digits, -1)).sum(1)
        return weight if self.order is None else weight[:, self.order.argsort()]


def arrange_input(x: Tensor, digits: int, order: Tensor | None) -> Tensor:
    """Return what a weight's stored columns multiply of an input [..., K]: [..., digits * K]."""
    x = x if order is None else x.index_select(-1, order)
    return x if digits == 1 else torch.cat(digits * (x,), dim=-1)


def symmetric_zero(bits: int) -> int:
    """Return the zero point of unsigned codes of symmetric weights."""
    return 1 << (bits - 1)


def column_order(group_of: Tensor, columns: int, group_size: int, name: str) -> Tensor | None:
    """Return the order int64 [K] of columns that makes the groups `group_of` int [K] consecutive.

    None if they are so. Raises CheckpointError, which calls the groups `name`, for groups of
    another size than `group_size` or another number of columns.
    """
    if group_of.shape != (columns,) or group_of.is_floating_point():
        raise CheckpointError(
            f"{name}: {group_of.dtype} {list(group_of.shape)} for {columns} columns"
        )
    in_order = torch.arange(columns) // group_size
    if torch.equal(group_of.long(), in_order):
        return None
    order = group_of.argsort(stable=True)
    if not torch.equal(group_of.long()[order], in_order):
        raise CheckpointError(f"{name}: not {group_size} columns in each group")
    return order


@dataclass(frozen=True, slots=True)
class Int4Format:
    """INT4 in groups of columns that share a scale; INT8 has two `digits`. A `group_size` that does
    not divide a row stands for the whole row."""

    group_size: int
    digits: int = 1


def random_int4(
    rows: int, columns: int, group_size: int, dtype: torch.dtype, digits: int = 1
) -> Int4Weight:
    """Make a symmetric weight of random codes and scales; a unit input gives about a unit output.

    Codes are 1 to 15. With 0 their mean would differ from the zero point, and in a stack of such
    layers that one direction would dominate all others.
    """
    if group_size < 1 or columns % group_size:
        group_size = columns
    columns *= digits
    groups = columns // group_size
    low, high = (torch.randint(1, 16, (rows, columns // 2), dtype=torch.uint8) for _ in range(2))
    spread = 0.5 + torch.rand(groups, rows, dtype=dtype)
    return Int4Weight(
        qdata=low | (high << 4),
        scale=spread / (4.3 * columns**0.5),
        zero_point=torch.full((groups, rows), 8.0, dtype=dtype),
        digits=digits,
    )


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """Unpack int32 words [..., W] to uint8 codes [..., 32 W / bits], lowest bits first."""
    pairs = bytes_of_words(words)
    return pairs if bits == 8 else codes_of_bytes(pairs)


def bytes_of_words(words: Tensor) -> Tensor:
    """View int32 words [..., W] as uint8 bytes [..., 4 W], lowest byte first."""
    flat = words.flatten()  # a transposed single column claims to be contiguous, but has no view
    return flat.view(torch.uint8).view(*words.shape[:-1], -1)


def codes_of_bytes(pairs: Tensor) -> Tensor:
    """Unpack bytes uint8 [..., B] to uint8 codes [..., 2 B], low nibble first."""
    return torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(-2)


def bytes_of_codes(codes: Tensor) -> Tensor:
    """Pack uint8 codes [..., K] as canonical `qdata`: [..., K / 2], even k in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)
