"""The GPU that kernels are for: what it decides of their sizes and instructions."""

import subprocess
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

import torch

SHARED_MEMORY = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
"""KiB that a program may have, by compute capability: of all that the kernels compile for."""

H100 = (9, 0)
"""What kernels are measured on, and checked for where there is no GPU."""

Sizes = TypeVar("Sizes")


def capability() -> tuple[int, int]:
    """The compute capability of the GPU here, or of an H100."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else H100


def fitting(sizes: Mapping[int, Sizes]) -> Sizes:
    """Of sizes by the KiB of shared memory that they take, the largest that fit the GPU here."""
    available = SHARED_MEMORY.get(capability(), min(SHARED_MEMORY.values()))
    return sizes[max(needed for needed in sizes if needed <= available)]


@cache
def launches_kernels() -> bool:
    """Whether Triton can start a kernel on the GPU here: it has a C compiler make what does."""
    try:
        from triton.runtime import driver

        return driver.active.utils is not None
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        return False
