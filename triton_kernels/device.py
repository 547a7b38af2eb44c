"""The GPU that kernels are compiled for, which decides their sizes and instructions."""

import subprocess
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

SHARED_MEMORY = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
"""KiB of shared memory per program, for every compute capability that kernels compile for."""

H100 = (9, 0)
"""The GPU that kernels are measured on, and checked for on machines without one."""

H100_MULTIPROCESSORS, H100_SHARED = 132, SHARED_MEMORY[H100] << 10
"""Its multiprocessors, and the bytes of shared memory that one has for a program."""

Sizes = TypeVar("Sizes")


def capability() -> tuple[int, int]:
    """Return the compute capability of this machine's GPU, or of an H100 if there is none."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else H100


def multiprocessors() -> int:
    """Return the number of multiprocessors of this machine's GPU, or of an H100 without one."""
    if not torch.cuda.is_available():
        return H100_MULTIPROCESSORS
    return torch.cuda.get_device_properties().multi_processor_count


def fitting(sizes: Mapping[int, Sizes]) -> Sizes:
    """Return the largest of `sizes`, keyed by KiB of shared memory, that fit this GPU."""
    available = SHARED_MEMORY.get(capability(), min(SHARED_MEMORY.values()))
    return sizes[max(needed for needed in sizes if needed <= available)]


@cache
def launches_kernels() -> bool:
    """Whether Triton can launch kernels here; it needs a C compiler to build its launcher."""
    try:
        from triton.runtime import driver

        return driver.active.utils is not None
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        return False


def launches_for(x: Tensor) -> bool:
    """Whether Triton can launch kernels that read `x` [...]: it is on a GPU."""
    return x.device.type != "cpu" and launches_kernels()
