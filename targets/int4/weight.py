"""The canonical layout of a group-quantised INT4 weight."""

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A [N, K] weight, `(code - zero_point) * scale`, groups of g consecutive k.

    qdata uint8 [N, K / 2], codes 0..15, even k in the low nibble; scale and zero_point float
    [K / g, N]. Symmetric weights have zero_point 8 throughout. This is the layout of ExecuTorch's
    `ExportableInt4Tensor`.

    An INT8 weight is one of two `digits` (`int8_digits.py`): K counts the columns of both, and it
    is multiplied by its input beside itself.
    """

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor
    digits: int = field(default=1, kw_only=True)

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
        """(N, K)."""
        return self.qdata.shape[0], 2 * self.qdata.shape[1]

    @property
    def group_size(self) -> int:
        """Columns that share one scale."""
        return 2 * self.qdata.shape[1] // self.scale.shape[0]

    @property
    def unpackable(self) -> str | None:
        """Why the GPU kernels cannot read the weight and what to do; None: they can."""
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
        """The weight in the order that the GPU kernels read, on its own device.

        A GPU does the work where there is one, as a host takes a minute for a model of 60 layers.
        Raises UnsupportedError where `unpackable` says why.
        """
        if self.unpackable:
            raise UnsupportedError(f"INT4 weight: {self.unpackable}")
        weight = self.qdata, self.scale, self.zero_point
        if not torch.cuda.is_available() or isinstance(self.qdata, FakeTensor):
            return pack(*weight)
        return pack(*(tensor.cuda() for tensor in weight)).to(self.qdata.device)

    @classmethod
    def unpack(cls, packed: PackedInt4, digits: int = 1) -> "Int4Weight":
        """What was packed, bit for bit; groups of more than 128 columns as several equal ones."""
        return cls(*unpack(packed), digits=digits)

    def dense(self) -> Tensor:
        """The weight [N, K], digits added up, in the dtype of its scales."""
        weight = dequantise_int4(self.qdata, self.scale, self.zero_point)
        return weight if self.digits == 1 else weight.unflatten(1, (self.digits, -1)).sum(1)


def repeated(x: Tensor, digits: int) -> Tensor:
    """The input [..., K] as a weight of so many digits takes it, [..., digits x K]."""
    return x if digits == 1 else torch.cat(digits * (x,), dim=-1)


def random_int4(rows: int, columns: int, group_size: int, dtype: torch.dtype) -> Int4Weight:
    """A symmetric weight of random codes and scales; a unit input gives about a unit output.

    Codes are 1 to 15: with 0 as well their mean would be off the zero point, and in a stack of
    such layers that one direction drowns all others.
    """
    groups = columns // group_size
    low, high = (torch.randint(1, 16, (rows, columns // 2), dtype=torch.uint8) for _ in range(2))
    spread = 0.5 + torch.rand(groups, rows, dtype=dtype)
    return Int4Weight(
        qdata=low | (high << 4),
        scale=spread / (4.3 * columns**0.5),
        zero_point=torch.full((groups, rows), 8.0, dtype=dtype),
    )
