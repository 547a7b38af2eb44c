"""Weight tables that ExecuTorch wrote, and what is said of those that cannot be true."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.backends.cuda.cuda_weight_collector import (
    CudaWeightCollector,
    CudaWeightEntry,
    encode_cuda_weight_metadata,
)
from executorch.exir.scalar_type import ScalarType
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.program.flatbuffer import DAMAGE, UnreadableError
from eagle_aot.runtime_runner.program.weight_table import DEVICES, DTYPES, Weight, read_weight_table
from support.files.cuda import CPU, CUDA, Edit, damaged, edits, entry

LIBRARY = "0f3a_so_blob"


def read(payload: bytes) -> tuple[str, tuple[Weight, ...]]:
    return read_weight_table(memoryview(payload))


def why(payload: bytes) -> str | None:
    """The refusal of a table, None for one that is read."""
    try:
        read(payload)
    except (UnreadableError, *DAMAGE) as error:
        return str(error)
    return None


def encoded(*entries: CudaWeightEntry) -> bytes:
    return encode_cuda_weight_metadata(LIBRARY, list(entries))


def changed(**changes: Any) -> bytes:
    """Return a table of one weight, float32 [3, 4] in 48 bytes, with changes."""
    return encoded(entry("target.w", torch.zeros(3, 4), **changes))


def as_entry(weight: Weight) -> CudaWeightEntry:
    """What the writer was given, if the weight is what it says."""
    dtypes = {dtype: number for number, dtype in DTYPES.items()}
    devices = {device: number for number, device in DEVICES.items()}
    return CudaWeightEntry(
        weight.fqn,
        weight.storage_key,
        weight.storage_nbytes,
        dtypes[weight.dtype],
        devices[weight.device],
        weight.storage_offset,
        weight.sizes,
        weight.strides,
    )


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_every_dtype_and_device_reads_back(dtype: torch.dtype, device: int) -> None:
    written = entry("target.w", torch.zeros(2, 3, dtype=dtype), device)
    library, (weight,) = read(encoded(written))
    assert (library, as_entry(weight)) == (LIBRARY, written)
    assert weight.dtype == dtype and weight.device == ("cpu", "cuda")[device]
    assert (weight.sizes, weight.strides, weight.storage_offset) == ((2, 3), (3, 1), 0)


def test_dtypes_are_numbered_as_the_writer_numbers_them() -> None:
    names = {ScalarType.BYTE: "uint8", ScalarType.CHAR: "int8", ScalarType.SHORT: "int16"}
    names |= {ScalarType.INT: "int32", ScalarType.LONG: "int64", ScalarType.HALF: "float16"}
    names |= {ScalarType.FLOAT: "float32", ScalarType.DOUBLE: "float64"}
    names |= {ScalarType.BOOL: "bool", ScalarType.BFLOAT16: "bfloat16"}
    assert {int(n): getattr(torch, name) for n, name in names.items()} == DTYPES


def test_a_method_without_weights() -> None:
    assert read(encoded()) == (LIBRARY, ())


BASE = torch.arange(60.0)
VIEWS = {
    "whole": BASE,
    "rows": BASE.view(6, 10)[2:4],
    "columns": BASE.view(6, 10)[:, 3::2],
    "transposed": BASE.view(6, 10).T,
    "expanded": BASE[7].expand(4, 5),
    "scalar": BASE[59],
    "no_rows": BASE.view(6, 10)[6:],
    "empty": torch.zeros(0, 3),
    "bytes_of_a_longer_storage": torch.zeros(13, dtype=torch.uint8)[4:12].view(torch.float32),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_pytorch_makes_are_accepted(name: str) -> None:
    written = entry(name, VIEWS[name])
    assert [as_entry(weight) for weight in read(encoded(written))[1]] == [written]


def test_weights_that_the_exporter_collects_are_accepted(tmp_path: Path) -> None:
    weights = {name: (view, SimpleNamespace()) for name, view in VIEWS.items()}
    artifact = CudaWeightCollector().materialize(weights, str(tmp_path), lambda tensor: CUDA)
    read_back = [as_entry(weight) for weight in read(encoded(*artifact.entries))[1]]
    assert read_back == artifact.entries
    lengths = {key: len(data) for key, data in artifact.storages.items()}
    assert {e.storage_key: e.storage_nbytes for e in read_back} == lengths


@pytest.mark.parametrize(("payload", "message"), [
    (b"", "its CUDA methods are of another version of ExecuTorch"),
    (b"ETCUDAFQN2" + bytes(8), "its CUDA methods are of another version of ExecuTorch"),
    (changed(dtype=8), "weight 'target.w' has the unknown dtype 8"),
    (changed(dtype=-1), "weight 'target.w' has the unknown dtype -1"),
    (changed(device_type=2), "weight 'target.w' has the unknown dtype 6 or device 2"),
    (changed(fqn="a\nb\x1b", dtype=8), r"weight 'a\nb\x1b' has the unknown dtype 8"),
    (changed().replace(b"target.w", b"target.\xff"), "'utf-8' codec can't decode"),
])  # fmt: skip
def test_tables_that_cannot_be_read(payload: bytes, message: str) -> None:
    found = why(payload)
    assert found is not None and found.startswith(message)


@pytest.mark.parametrize("changes", [
    {"sizes": (-3, 4)},
    {"sizes": (-3, -4)},
    {"strides": (-4, 1)},
    {"sizes": (0, 4), "strides": (-1, 1)},
    {"storage_offset": -1},
    {"storage_offset": 1},
    {"storage_offset": 13, "sizes": (0,), "strides": (1,)},
    {"storage_nbytes": 47},
    {"storage_nbytes": 0},
    {"sizes": (3, 5)},
    {"sizes": (4, 4)},
    {"strides": (5, 1)},
    {"dtype": 7},  # float64: twice the bytes
    {"sizes": (2**62, 2**62)},
    {"sizes": (2, 2), "strides": (2**63 - 1, 2**63 - 1)},
    {"storage_offset": 2**63 - 1},
    {"storage_offset": 2**62, "dtype": 0},
])  # fmt: skip
def test_views_that_leave_their_storage(changes: dict[str, Any]) -> None:
    assert why(changed(**changes)) == "weight 'target.w' does not fit in its storage"


def test_every_truncation_is_refused() -> None:
    payload = encoded(entry("target.w", torch.ones(2, 3)), entry("draft.w", torch.ones(2)))
    read(payload)
    for length in range(len(payload)):
        assert why(payload[:length]) is not None


@st.composite
def weights(draw: st.DrawFn, fqn: str) -> CudaWeightEntry:
    """A line that the writer may write: its view lies in its storage."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**20)), max_size=5))
    sizes, strides = tuple(s for s, _ in shape), tuple(s for _, s in shape)
    offset = draw(st.integers(0, 2**40))
    last = offset + sum((size - 1) * stride for size, stride in shape if size > 0)
    nbytes = (last + 1) * DTYPES[dtype].itemsize + draw(st.integers(0, 2**50))
    key, device = draw(st.text(max_size=20)), draw(st.sampled_from((CPU, CUDA)))
    return CudaWeightEntry(fqn, key, nbytes, dtype, device, offset, sizes, strides)


@st.composite
def tables(draw: st.DrawFn) -> list[CudaWeightEntry]:
    names = draw(st.lists(st.text(max_size=20), unique=True, max_size=6))
    return [draw(weights(name)) for name in names]


@settings(max_examples=300, deadline=None)
@given(library=st.text(max_size=80), entries=tables())
def test_any_table_reads_back(library: str, entries: list[CudaWeightEntry]) -> None:
    found, read_back = read(encode_cuda_weight_metadata(library, entries))
    assert (found, [as_entry(weight) for weight in read_back]) == (library, entries)


def elements(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[int]:
    """The places of all elements of a view, from its first."""
    for index in itertools.product(*map(range, sizes)):
        yield sum(i * stride for i, stride in zip(index, strides, strict=True))


@settings(max_examples=500, deadline=None)
@given(
    shape=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=3),
    offset=st.integers(0, 12),
    nbytes=st.integers(0, 160),
    dtype=st.sampled_from((0, 5, 6, 7)),
)
def test_a_view_fits_if_all_its_elements_do(
    shape: list[tuple[int, int]], offset: int, nbytes: int, dtype: int
) -> None:
    sizes, strides = tuple(s for s, _ in shape), tuple(s for _, s in shape)
    reached = max((offset + e + 1 for e in elements(sizes, strides)), default=offset)
    fits = reached * DTYPES[dtype].itemsize <= nbytes
    line = CudaWeightEntry("w", "key", nbytes, dtype, CUDA, offset, sizes, strides)
    assert (why(encoded(line)) is None) == fits


@settings(max_examples=500, deadline=None)
@given(damage=edits())
def test_any_damage_is_read_or_refused(damage: list[Edit]) -> None:
    payload = encoded(entry("target.w", torch.ones(2, 3)), entry("draft.w", torch.ones(2)))
    why(damaged(payload, changed(), damage))
