"""How many threads torch shares an operation among, for a while."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many within the block, as many as before behind it. Takes less than a microsecond.

    A thread that uses torch for the first time meanwhile keeps the number within: what this
    surrounds in a process of other users is best short.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def single_threaded_on_cpu(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """One thread for what reads the tensor on a CPU: others would then wait in loops on the cores
    that the next forward needs."""
    return torch_threads(1) if tensor.device.type == "cpu" else nullcontext()
