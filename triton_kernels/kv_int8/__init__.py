"""Keys and values in INT8, the entries of a cache: [..., D + SCALE_BYTES] int8.

An entry is one token's key or value of one head: D integers, and after them the float32 that they
are multiplied by, at the first of `SCALE_BYTES` bytes. Operators read entries of either kind; their
dtype says which. Neither importing this package nor tracing needs triton.
"""

import torch
from torch import Tensor

SCALE_BYTES = 16
"""An entry begins at a multiple of 16 bytes, which a GPU's thread reads at once."""

LARGEST = 127

READERS = (torch.bfloat16, torch.float16)
"""Dtypes of queries whose operators read INT8 entries."""


def quantize_entries(x: Tensor) -> Tensor:
    """Convert keys or values [..., D] to INT8 entries, each with a scale of its own: its largest
    absolute value becomes 127."""
    wide = x.to(torch.float32)
    scale = wide.abs().amax(dim=-1, keepdim=True) / LARGEST
    codes = torch.floor(wide / scale.clamp_min(torch.finfo(torch.float32).tiny) + 0.5)
    bounded = codes.clamp(-LARGEST, LARGEST).to(torch.int8)
    stored = (scale.view(torch.int32) >> _shifts(scale)).to(torch.int8)
    return torch.cat((bounded, stored), dim=-1)


def _shifts(x: Tensor) -> Tensor:
    """Return where each byte of a scale begins, int32 [SCALE_BYTES]: the last bytes are copies.

    A view as bytes has no kernel in the CUDA backend.
    """
    return torch.arange(0, 8 * SCALE_BYTES, 8, dtype=torch.int32, device=x.device) % 32


def write_entries(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert keys or values [..., D] to entries of a cache of `dtype`."""
    if dtype == torch.int8:
        return quantize_entries(x)
    return x if x.dtype == dtype else x.to(dtype)


def read_entries(entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert entries of a cache to keys or values [..., D] of `dtype`."""
    if entries.dtype != torch.int8:
        return entries if entries.dtype == dtype else entries.to(dtype)
    head_dim = head_dim_of(entries)
    stored = entries[..., head_dim : head_dim + 4].to(torch.int32) & 255
    scale = (stored << _shifts(stored)[:4]).sum(dim=-1, keepdim=True, dtype=torch.int32)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (entries[..., :head_dim].to(wide) * scale.view(torch.float32).to(wide)).to(dtype)


def entry_length(head_dim: int, dtype: torch.dtype) -> int:
    """Return the elements of an entry of `dtype` for a head of `head_dim`."""
    return head_dim + (SCALE_BYTES if dtype == torch.int8 else 0)


def head_dim_of(entries: Tensor) -> int:
    """Return D of the entries of a cache [..., D] or [..., D + SCALE_BYTES]."""
    return entries.shape[-1] - entry_length(0, entries.dtype)


def are_readable(entries: Tensor, dtype: torch.dtype) -> bool:
    """Whether operators whose queries have `dtype` read the entries of a cache."""
    return entries.dtype == dtype or (entries.dtype == torch.int8 and dtype in READERS)
