"""What a checkpoint asks of a file of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.targets.int4.weight import Int4Weight


@dataclass(frozen=True, slots=True)
class Stored:
    """How a file holds a tensor: in its own words, in how many bytes, whether as INT4."""

    kind: str
    bytes: int
    is_int4: bool = False


class WeightFile(Protocol):
    """One file, read tensor by tensor. Every method raises CheckpointError for damage."""

    path: Path

    def names(self) -> list[str]:
        """Its tensors, by the names that a Hugging Face checkpoint has for them."""
        ...

    def shape(self, name: str) -> torch.Size:
        """Shape of one of `names`, without reading it."""
        ...

    def stored(self, name: str) -> Stored:
        """How one of `names` is held, without reading it; `is_int4` where `int4` gives it."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One of `names` on the CPU, dequantised where the file itself is quantised."""
        ...

    def int4(self, name: str) -> Int4Weight | None:
        """One of `names` if the file holds it as INT4 that the canonical layout can express."""
        ...
