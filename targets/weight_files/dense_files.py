"""Files of dense tensors: safetensors, and pickled `pytorch_model.bin`."""

import math
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.weight_files.protocol import TensorStorage


class SafetensorsFile:
    """A safetensors file; it is opened for each tensor, so nothing stays mapped in between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            self._names: list[str] = list(file.keys())
            self.metadata: dict[str, str] = file.metadata() or {}

    def names(self) -> list[str]:
        return self._names

    def shape(self, name: str) -> torch.Size:
        with self._open() as file, self._errors_of(name):
            return torch.Size(file.get_slice(name).get_shape())

    def storage(self, name: str) -> TensorStorage:
        with self._open() as file, self._errors_of(name):
            tensor = file.get_slice(name)
            dtype, elements = str(tensor.get_dtype()), math.prod(tensor.get_shape())
        bits = re.search(r"\d+", dtype)  # BF16, F8_E4M3; a BOOL is a byte
        return TensorStorage(dtype, elements * int(bits[0] if bits else 8) // 8)

    def tensor(self, name: str) -> Tensor:
        with self._open() as file, self._errors_of(name):
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def int4(self, name: str) -> Int4Weight | None:
        return None

    @contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Raise CheckpointError for a tensor that cannot be read, such as one of unknown dtype."""
        try:
            yield
        except (SafetensorError, ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{self.path}: {name} cannot be read ({error})") from error

    def _open(self) -> Any:
        try:
            return safe_open(self.path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{self.path}: cannot be read as safetensors ({error})"
            ) from error


class PickledFile:
    """A pickled table of tensors, loaded as a whole with weights only: no code is executed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = _load_pickled(path)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> torch.Size:
        return self._tensors[name].shape

    def storage(self, name: str) -> TensorStorage:
        tensor = self._tensors[name]
        return TensorStorage(str(tensor.dtype).removeprefix("torch."), tensor.nbytes)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def int4(self, name: str) -> Int4Weight | None:
        return None


MAX_PROTOCOL = 3
"""Of pickles; torch reads later ones only by executing their code."""
MAX_PICKLE = 4 << 20
"""Bytes of a table of tensors: one takes some 200, so 20,000 of them."""
RESAVE = "save its tensors again, with safetensors"
REPEATABLE = {"BINUNICODE", "SHORT_BINUNICODE", "GLOBAL", "STACK_GLOBAL", "REDUCE"}
"""Operations of a pickle whose result is used again in one that torch writes. Tuples of tuples that
are used twice take twice the time of hashing or printing with each level."""


def _load_pickled(path: Path) -> dict[str, Tensor]:
    try:
        _check_pickle(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        operation = re.search(r"Unsupported (?:global: GLOBAL|\w+) [^\s,]+", str(error))
        raise CheckpointError(
            f"{path}: cannot be loaded as plain weights "
            f"({operation[0] if operation else 'damaged'}): {RESAVE}"
        ) from error
    except Exception as error:  # torch.load raises another type for every kind of damage
        raise CheckpointError(f"{path}: cannot be loaded as plain weights ({error})") from error
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise CheckpointError(f"{path}: holds something other than a table of tensors")
    for name, tensor in loaded.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{path}: names a tensor {name!r}, expected a string")
        if kind := _unread_kind(tensor):
            raise CheckpointError(f"{path}: {name} is {kind}, expected a dense tensor of numbers")
    return loaded


def _check_pickle(path: Path) -> None:
    """Raise ValueError for a table of tensors that would take more than seconds to load."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed")
            if not entry.filename.endswith("data.pkl"):
                continue
            if entry.file_size > MAX_PICKLE:
                raise ValueError(f"more than {MAX_PICKLE >> 20} MiB of names: split it into shards")
            _check_repeats(archive.read(entry))


def _check_repeats(pickled: bytes) -> None:
    operations, previous = dict[int, str](), ""  # those whose result is stored, by its number
    for operation, argument, _ in pickletools.genops(pickled):
        number = argument or 0
        if operation.name == "PROTO" and number > MAX_PROTOCOL:
            raise ValueError(f"pickle protocol {number} is not read: {RESAVE}")
        if operation.name == "MEMOIZE":
            operations[len(operations)] = previous
        elif operation.name.endswith("BINPUT"):
            operations[number] = previous
        elif operation.name.endswith("BINGET") and operations.get(number) not in REPEATABLE:
            raise ValueError(f"uses the result of {operations.get(number)} twice")
        previous = operation.name


def _unread_kind(tensor: Tensor) -> str:
    """Return what a tensor is instead of a dense one whose every element is stored; empty if it is
    one."""
    if tensor.is_meta:
        return "a meta tensor without data"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({str(tensor.layout).removeprefix('torch.')})"
    if tensor.is_complex() or tensor.is_quantized:
        return f"of type {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        return f"of shape {list(tensor.shape)}, with fewer elements in the file"
    return ""
