"""The number of threads that torch uses for an operation."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use `count` torch threads in the block and restore the previous number.

    A thread that first uses torch meanwhile keeps `count`, so keep the block short.
    """
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def single_threaded_on_cpu(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Use one thread to read a tensor `[...]` on a CPU: idle threads would spin on the cores that
    the next forward needs."""
    return torch_threads(1) if tensor.device.type == "cpu" else nullcontext()
