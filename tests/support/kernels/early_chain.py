"""Kernels in a row, of which one lets the next begin long before it has written anything."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels.early_launch import let_next_begin, wait_for_earlier

LATE = tl.constexpr(20_000)
"""Nanoseconds from a kernel's beginning to its write."""


@triton.jit
def late_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, COUNT: tl.constexpr) -> None:
    """out = x + 1, late."""
    let_next_begin(True)
    place = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    start = tl.extra.cuda.globaltimer()
    while tl.extra.cuda.globaltimer() < start + LATE:
        pass
    tl.store(out_ptr + place, tl.load(x_ptr + place) + 1)


@triton.jit
def waiting_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, COUNT: tl.constexpr) -> None:
    """out = x, when the kernel before has ended."""
    let_next_begin(True)
    wait_for_earlier(True)
    place = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(out_ptr + place, tl.load(x_ptr + place))


@triton.jit
def hasty_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, COUNT: tl.constexpr) -> None:
    """out = x, at once."""
    place = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(out_ptr + place, tl.load(x_ptr + place))


class Chain:
    """Adds one to its numbers: late, through `links` kernels that copy, each where it is told."""

    PROGRAMS, COUNT = 64, 128

    def __init__(self, kernel: Any, links: int = 6) -> None:
        self.kernel, self.links = kernel, links
        self.numbers = torch.zeros(self.PROGRAMS * self.COUNT, dtype=torch.int32, device="cuda")
        self.copies = [torch.zeros_like(self.numbers) for _ in range(2)]

    def step(self) -> Tensor:
        """Two buffers in turn: who writes to one must have waited for the reader before."""
        self._launch(late_kernel, self.numbers, self.copies[0])
        for link in range(self.links):
            self._launch(self.kernel, self.copies[link % 2], self.copies[(link + 1) % 2])
        self._launch(self.kernel, self.copies[self.links % 2], self.numbers)
        return self.numbers

    def _launch(self, kernel: Any, x: Tensor, out: Tensor) -> None:
        kernel[(self.PROGRAMS,)](x, out, COUNT=self.COUNT)
