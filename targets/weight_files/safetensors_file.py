"""Plain safetensors."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.weight_files.protocol import Stored


class SafetensorsFile:
    """A safetensors file, opened for each tensor: nothing stays mapped in between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            self._names: list[str] = list(file.keys())
            self.metadata: dict[str, str] = file.metadata() or {}

    def names(self) -> list[str]:
        return self._names

    def shape(self, name: str) -> torch.Size:
        with self._open() as file, self._stated(name):
            return torch.Size(file.get_slice(name).get_shape())

    def stored(self, name: str) -> Stored:
        with self._open() as file, self._stated(name):
            part = file.get_slice(name)
            kind, elements = str(part.get_dtype()), math.prod(part.get_shape())
        bits = re.search(r"\d+", kind)  # BF16, F8_E4M3; a BOOL is a byte
        return Stored(kind, elements * int(bits[0] if bits else 8) // 8)

    def tensor(self, name: str) -> Tensor:
        with self._open() as file, self._stated(name):
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def int4(self, name: str) -> Int4Weight | None:
        return None

    @contextmanager
    def _stated(self, name: str) -> Iterator[None]:
        """A tensor that cannot be made, of a dtype that torch has not for example, is damage."""
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
