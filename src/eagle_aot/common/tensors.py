"""Tensors that take no memory or no time of their own, and files of tensors."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle_aot.common.files import apply_umask


def untouched_zeros(like: Tensor) -> Tensor:
    """Return zeros on the host, with the shape [...], strides and dtype of `like`.

    They take no memory until they are written. `like` may be a tensor without memory.
    `torch.zeros` would write all of them.
    """
    ends = ((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    count = 1 + sum(ends)
    memory = torch.from_numpy(np.zeros(count * like.itemsize, dtype=np.uint8))
    return memory.view(like.dtype).as_strided(like.shape, like.stride())


@cache
def arange_cached(start: int, end: int, device: torch.device) -> Tensor:
    """Return `torch.arange(start, end)`, always the same tensor, so that no round makes it."""
    return torch.arange(start, end, device=device)


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file with the permissions of new files; safetensors makes it private."""
    save_file(dict(tensors), path, metadata=metadata)
    apply_umask(path)
