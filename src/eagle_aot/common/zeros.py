"""Zeros that no page of memory stands behind until somebody writes to them."""

import numpy as np
import torch
from torch import Tensor


def untouched_zeros(like: Tensor) -> Tensor:
    """Of the shape, strides and dtype of `like`, which may be without memory, on the host.

    `torch.zeros` writes them, and so takes all their memory.
    """
    ends = ((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    count = 1 + sum(ends)
    memory = torch.from_numpy(np.zeros(count * like.itemsize, dtype=np.uint8))
    return memory.view(like.dtype).as_strided(like.shape, like.stride())
