"""The payload of a CUDA delegate: its shared object's name and the table of its weights.

Layout (executorch/backends/cuda/cuda_weight_collector.py), little-endian: `ETCUDAFQN3`, string
library key, u32 number of entries; per entry string fqn, string storage key, u64 storage bytes,
i32 dtype, i32 device, i64 storage offset in elements, u32 rank, i64 sizes[rank], i64
strides[rank]. A string is its u32 length and UTF-8 bytes.
"""

import struct
from dataclasses import dataclass
from typing import Any

import torch

from eagle_aot.runtime_runner.program.flatbuffer import UnreadableError, part

MAGIC = b"ETCUDAFQN3"
DTYPES = {  # ExecuTorch's scalar types, schema/scalar_type.fbs
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
DEVICES = {0: "cpu", 1: "cuda"}


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of a method: a strided view of a storage. Offset, sizes and strides count
    elements, and all that the view reaches lies in the storage."""

    fqn: str
    storage_key: str
    storage_nbytes: int
    dtype: torch.dtype
    device: str  # "cpu" or "cuda"
    storage_offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def owner(self) -> str:
        """Return what the weight belongs to: `target`, `draft`, `vision` or `TABLE_SCREEN`."""
        return self.fqn.partition(".")[0]


def read_weight_table(payload: memoryview) -> tuple[str, tuple[Weight, ...]]:
    """Return library key and weights.

    Raises UnreadableError for another format, and one of DAMAGE for impossible values.
    """
    cursor = _Cursor(payload)
    if bytes(payload[: len(MAGIC)]) != MAGIC:
        raise UnreadableError("its CUDA methods are of another version of ExecuTorch")
    cursor.unpack(f"{len(MAGIC)}s")
    library = cursor.text()
    (count,) = cursor.unpack("I")
    return library, tuple(_weight(cursor) for _ in range(count))


class _Cursor:
    """Reads values in order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._data, self._position)
        self._position += struct.calcsize(f"<{layout}")
        return values

    def text(self) -> str:
        (length,) = self.unpack("I")
        text = str(part(self._data, self._position, length), "utf-8")
        self._position += length
        return text


def _weight(cursor: _Cursor) -> Weight:
    fqn, key = cursor.text(), cursor.text()
    nbytes, dtype, device, offset, rank = cursor.unpack("QiiqI")
    sizes, strides = cursor.unpack(f"{rank}q"), cursor.unpack(f"{rank}q")
    if dtype not in DTYPES or device not in DEVICES:
        raise UnreadableError(f"weight {fqn!r} has the unknown dtype {dtype} or device {device}")
    weight = Weight(fqn, key, nbytes, DTYPES[dtype], DEVICES[device], offset, sizes, strides)
    if not _fits(weight):
        raise ValueError(f"weight {fqn!r} does not fit in its storage")
    return weight


def _fits(weight: Weight) -> bool:
    """Return whether the whole view lies in its storage. PyTorch would silently grow it."""
    reached = weight.storage_offset
    if 0 not in weight.sizes:
        pairs = zip(weight.sizes, weight.strides, strict=True)
        reached += 1 + sum((size - 1) * stride for size, stride in pairs)
    natural = min((weight.storage_offset, *weight.sizes, *weight.strides)) >= 0
    return natural and reached * weight.dtype.itemsize <= weight.storage_nbytes
