"""Large tensors that Inductor makes up to try kernels on, all in one place."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

LARGE = 1 << 28
"""Bytes from which a tensor is in the common place: many times a GPU's L2, so that what is measured
of reading several of them stays what it was."""


@contextmanager
def large_examples_in_one_place() -> Iterator[None]:
    """Let Inductor's made-up arguments of `LARGE` bytes and more take the memory of one of them.

    It makes up every argument of every kernel, and keeps it for the last kernel that takes it. Of a
    layer whose caches hold many long sequences that is more than the weights of a head: keys,
    values, and the table of embeddings beside both.
    """
    from torch._inductor.select_algorithm import AlgorithmSelectorCache  # takes seconds

    make = AlgorithmSelectorCache.generate_example_value
    shared = staticmethod(in_one_place(make))
    with patch.object(AlgorithmSelectorCache, "generate_example_value", shared):
        yield


def in_one_place(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`generate_example_value`, with zeros that large tensors share where `make` fills each.

    Where one comes that is larger than all before it, later ones share its place.
    """
    places: dict[torch.device, Tensor] = {}

    def example(
        size: Sequence[int],
        stride: Sequence[int],
        device: torch.device | str,
        dtype: torch.dtype,
        extra_size: int,
        allocation_size: Sequence[int] | None = None,
    ) -> Tensor:
        ends = zip(allocation_size or size, stride, strict=True)
        nbytes = dtype.itemsize * (extra_size + 1 + sum((n - 1) * step for n, step in ends))
        if nbytes < LARGE or 0 in size:
            return make(size, stride, device, dtype, extra_size, allocation_size)
        device = torch.device(device)
        if device not in places or places[device].nbytes < nbytes:
            places.pop(device, None)  # which goes as soon as no kernel has it any more
            places[device] = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        return places[device][:nbytes].view(dtype).as_strided(size, stride)

    return example
