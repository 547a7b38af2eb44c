"""Rows of token ids on disk, whole or not at all."""

import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle_aot.common.errors import CheckpointError

TWO_BYTES = 2**16


def small(ids: Tensor, vocab_size: int) -> Tensor:
    """Ids as uint16 where the vocabulary allows, int32 otherwise."""
    return ids.to(torch.uint16 if vocab_size <= TWO_BYTES else torch.int32)


def write_tensors(tensors: dict[str, Tensor], path: Path, identity: str) -> None:
    """Write a safetensors file that says what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_file(tensors, unfinished, metadata={"identity": identity})
    os.replace(unfinished, path)


def read_tensors(path: Path, identity: str) -> dict[str, Tensor]:
    """What was written. Raises CheckpointError where it was made from something else."""
    with safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("identity") != identity:
            raise CheckpointError(
                f"{path}: made for another target or with other options: name a new --output-dir"
            )
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
