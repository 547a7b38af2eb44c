"""A Hugging Face checkpoint directory, read one tensor at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle_aot.errors import CheckpointError, CheckpointNotFoundError
from eagle_aot.targets.config_section import ConfigSection

INDEX = "model.safetensors.index.json"


class Checkpoint:
    """`config.json` and the tensors of one directory, whether in one file or in shards.

    Safetensors are read lazily, tensor by tensor. `pytorch_model.bin` is accepted where a
    directory holds nothing else and is loaded whole, with weights only (no code is executed).
    Raises CheckpointNotFoundError when the directory, its config or its weights are missing and
    CheckpointError when a file cannot be read or two shards hold the same tensor.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise CheckpointNotFoundError(f"{self.directory}: no such checkpoint directory")
        self.config = ConfigSection(
            read_json(self.directory / "config.json"), self.directory / "config.json"
        )
        self._pickled: dict[str, Tensor] = {}
        self._file_of: dict[str, Path] = {}
        for path in self.files():
            self._index(path)

    def files(self) -> list[Path]:
        """The weight files, in the order of their names."""
        index = self.directory / INDEX
        if index.is_file():
            shards = ConfigSection(read_json(index), index).section("weight_map")
            return [self._inside(name) for name in sorted({shards.text(k) for k in shards.values})]
        for pattern in ("model.safetensors", "pytorch_model.bin", "*.safetensors"):
            if found := sorted(self.directory.glob(pattern)):
                return found
        raise CheckpointNotFoundError(
            f"{self.directory}: no *.safetensors and no pytorch_model.bin"
        )

    def names(self) -> Iterator[str]:
        """All tensor names."""
        return iter(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU, as stored. Raises CheckpointError when it is not there."""
        if name in self._pickled:
            return self._pickled[name]
        if name not in self._file_of:
            raise CheckpointError(f"{self.directory}: tensor {name!r} is missing")
        with _open(self._file_of[name]) as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def shape(self, name: str) -> torch.Size:
        """Shape of one tensor, without reading it. Raises CheckpointError when it is not there."""
        if name in self._pickled or name not in self._file_of:
            return self.tensor(name).shape
        with _open(self._file_of[name]) as file:
            return torch.Size(file.get_slice(name).get_shape())

    def _index(self, path: Path) -> None:
        if path.suffix == ".bin":
            self._pickled = _load_pickled(path)
            names = list(self._pickled)
        else:
            with _open(path) as file:
                names = list(file.keys())
        for name in names:
            if name in self._file_of:
                raise CheckpointError(
                    f"{self.directory}: tensor {name!r} is in both {self._file_of[name].name} "
                    f"and {path.name}"
                )
            self._file_of[name] = path

    def _inside(self, name: str) -> Path:
        path = self.directory / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointNotFoundError(f"{self.directory / INDEX}: shard {name!r} is missing")
        return path


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointNotFoundError or CheckpointError."""
    if not path.is_file():
        raise CheckpointNotFoundError(f"{path}: no such file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error


def _load_pickled(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch.load raises a different type for every kind of damage
        raise CheckpointError(f"{path}: cannot be loaded as plain weights ({error})") from error
    if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise CheckpointError(f"{path}: holds something other than a table of tensors")
    return loaded
