"""Zeros that take no memory until they are written."""

from pathlib import Path

import torch

from eagle_aot.common.tensors import untouched_zeros

BYTES = 2**28


def resident() -> int:
    """Bytes of this process's memory."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def test_untouched_zeros_take_no_memory() -> None:
    like = torch.empty(2**10, BYTES // 2**11, dtype=torch.bfloat16, device="meta").t()
    before = resident()
    zeros = untouched_zeros(like)
    assert resident() - before < BYTES / 8
    assert (zeros.shape, zeros.stride(), zeros.dtype) == (like.shape, like.stride(), like.dtype)
    assert not zeros.any()


def test_untouched_zeros_can_be_written() -> None:
    zeros = untouched_zeros(torch.empty(3, 4))
    zeros[1] = 7
    assert zeros.sum() == 28
