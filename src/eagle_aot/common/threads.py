"""How many threads torch shares an operation among, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

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
