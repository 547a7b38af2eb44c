"""The payload of a CUDA delegate: its shared object's name and the table of its weights.

Layout (executorch/backends/cuda/cuda_weight_collector.py), little-endian: `ETCUDAFQN3`, string
library key, u32 number of entries; per entry string fqn, string storage key, u64 storage bytes,
i32 dtype, i32 device, i64 storage offset in elements, u32 rank, i64 sizes[rank], i64
strides[rank]. A string is its u32 length and UTF-8 bytes.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from eagle_aot.artifact import CACHE_MARK
from eagle_aot.runtime_runner.program.untrusted_file import UntrustedBytes, shown

MAGIC = b"ETCUDAFQN3"
SMALLEST_ENTRY = 36  # two empty strings and a scalar's description
LARGEST = 2**63 - 1  # bytes; what PyTorch can count
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
        """Whose weight it is: `target` or `draft`."""
        return self.fqn.partition(".")[0]

    @property
    def is_cache(self) -> bool:
        """Whether methods write it."""
        return CACHE_MARK in self.fqn


def read_weight_table(payload: UntrustedBytes) -> tuple[str, tuple[Weight, ...]]:
    """Library key and weights. Raises ArtifactError when the payload is damaged."""
    payload.spend(len(payload))
    cursor = _Cursor(payload)
    if cursor.unpack(f"{len(MAGIC)}s") != (MAGIC,):
        payload.refuse("its CUDA methods are of another version of ExecuTorch")
    library = cursor.text()
    (count,) = cursor.unpack("I")
    payload.require(cursor.position, count * SMALLEST_ENTRY)
    weights = {weight.fqn: weight for weight in _entries(cursor, count)}
    if len(weights) != count:
        payload.refuse("a weight is listed twice")
    if cursor.position != len(payload):
        payload.refuse("damaged (a weight table goes on behind its last entry)")
    return library, tuple(weights.values())


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, data: UntrustedBytes) -> None:
        self.data = data
        self.position = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = self.data.unpack(layout, self.position)
        self.position += struct.calcsize("<" + layout)
        return values

    def text(self) -> str:
        (length,) = self.unpack("I")
        text = self.data.text(self.position, length)
        self.position += length
        return text


def _entries(cursor: _Cursor, count: int) -> Iterator[Weight]:
    for _ in range(count):
        fqn, key = cursor.text(), cursor.text()
        nbytes, dtype, device, offset, rank = cursor.unpack("QiiqI")
        sizes, strides = cursor.unpack(f"{rank}q"), cursor.unpack(f"{rank}q")
        if dtype not in DTYPES:
            cursor.data.refuse(f"weight {shown(fqn)} has the unknown dtype {dtype}")
        if device not in DEVICES:
            cursor.data.refuse(f"weight {shown(fqn)} is on the unknown device {device}")
        weight = Weight(
            fqn, key, nbytes, DTYPES[dtype], DEVICES[device], offset, sizes, strides
        )  # fmt: skip
        if not _fits(weight):
            cursor.data.refuse(f"weight {shown(fqn)} does not fit in its storage")
        yield weight


def _fits(weight: Weight) -> bool:
    """Whether the view is sound: nothing negative, nothing outside its storage, all countable."""
    if min((weight.storage_offset, *weight.sizes, *weight.strides)) < 0:
        return False
    item = weight.dtype.itemsize
    reached = weight.storage_offset
    if 0 not in weight.sizes:
        pairs = zip(weight.sizes, weight.strides, strict=True)
        reached += 1 + sum((size - 1) * stride for size, stride in pairs)
    return reached * item <= weight.storage_nbytes and _countable(weight.sizes, item)


def _countable(sizes: tuple[int, ...], item: int) -> bool:
    """Whether PyTorch can count the bytes of a dense tensor of these sizes, zeros left out."""
    total = item
    for size in sizes:
        total *= max(size, 1)
        if total > LARGEST:  # here already: the product of a hostile list is itself huge
            return False
    return True
