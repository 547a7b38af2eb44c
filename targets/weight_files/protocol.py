"""The interface of a file of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.targets.int4.weight import Int4Weight


@dataclass(frozen=True, slots=True)
class TensorStorage:
    """How a file holds a tensor: its own name of the format, the size, and whether it is INT4."""

    file_format: str
    bytes: int
    is_int4: bool = False


class WeightFile(Protocol):
    """One file, read tensor by tensor. Every method raises CheckpointError for damage."""

    path: Path

    def names(self) -> list[str]:
        """List the tensors by the names that Hugging Face checkpoints have for them."""
        ...

    def shape(self, name: str) -> torch.Size:
        """Return the shape of one of `names` without reading it."""
        ...

    def storage(self, name: str) -> TensorStorage:
        """Return how one of `names` is stored, without reading it; `is_int4` if `int4` reads it."""
        ...

    def tensor(self, name: str) -> Tensor:
        """Read one of `names` [...] on the CPU, dequantised if the file is quantised."""
        ...

    def int4(self, name: str) -> Int4Weight | None:
        """Read one of `names` if the file holds it as INT4 that the canonical layout expresses."""
        ...
