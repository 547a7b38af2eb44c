"""Changes to checkpoints on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def edit_config(directory: Path, **changes: Any) -> None:
    """Set keys of config.json; `None` removes one."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in config.items() if v is not None}))


def edit_tensors(directory: Path, change: Callable[[Tensors], Any]) -> None:
    """Let `change` edit the tensors by name, and save them."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def put(name: str, *shape: int) -> Callable[[Tensors], Any]:
    """A change for `edit_tensors`: zeros of `shape` by this name."""
    return lambda tensors: tensors.update({name: torch.zeros(shape)})
