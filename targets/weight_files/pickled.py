"""`pytorch_model.bin`: a pickled table of tensors."""

from pathlib import Path

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.weight_files.protocol import Stored


class PickledFile:
    """Loaded whole, with weights only: no code in it is executed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = _load(path)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> torch.Size:
        return self._tensors[name].shape

    def stored(self, name: str) -> Stored:
        tensor = self._tensors[name]
        return Stored(str(tensor.dtype).removeprefix("torch."), tensor.nbytes)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def int4(self, name: str) -> Int4Weight | None:
        return None


def _load(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises a different type for every kind of damage
        raise CheckpointError(f"{path}: cannot be loaded as plain weights ({error})") from error
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise CheckpointError(f"{path}: holds something other than a table of tensors")
    return loaded
