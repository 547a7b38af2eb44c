"""Keys and values in INT8, the entries of a cache: [..., D + SCALE_BYTES] int8.

An entry is one token's key or value of one head: D integers, and after them the float32 that they
are multiplied by, at the first of `SCALE_BYTES` bytes. Operators read entries of either kind; their
dtype says which. Neither importing this package nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

SCALE_BYTES = 16
"""An entry begins at a multiple of 16 bytes, which a GPU's thread reads at once."""

LARGEST = 127

READERS = (torch.bfloat16, torch.float16)
"""Dtypes of queries whose operators read INT8 entries."""


# `triton_op` warns if triton is not installed; the operators then have no kernels for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::quantize_entries", mutates_args={})
def quantize_entries(x: Tensor) -> Tensor:
    """Convert keys or values [..., D] to INT8 entries, each with a scale of its own: its largest
    absolute value becomes 127."""
    from eagle_aot.triton_kernels.kv_int8.kernel import quantize

    return quantize(x)


@quantize_entries.register_kernel("cpu")
def _quantize_on_cpu(x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    scale = wide.abs().amax(dim=-1, keepdim=True) / LARGEST
    codes = torch.floor(wide / scale.clamp_min(torch.finfo(torch.float32).tiny) + 0.5)
    bounded = codes.clamp(-LARGEST, LARGEST).to(torch.int8)
    unused = bounded.new_zeros((*x.shape[:-1], SCALE_BYTES - 4))
    return torch.cat((bounded, scale.view(torch.int8), unused), dim=-1)


@quantize_entries.register_fake
def _entries_shape(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], entry_length(x.shape[-1], torch.int8)), dtype=torch.int8)


@_operator("eagle_aot::dequantize_entries", mutates_args={})
def dequantize_entries(entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert INT8 entries to keys or values [..., D] of `dtype`."""
    from eagle_aot.triton_kernels.kv_int8.kernel import dequantize

    return dequantize(entries, dtype)


@dequantize_entries.register_kernel("cpu")
def _dequantize_on_cpu(entries: Tensor, dtype: torch.dtype) -> Tensor:
    head_dim = head_dim_of(entries)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale = entries[..., head_dim : head_dim + 4].contiguous().view(torch.float32)
    return (entries[..., :head_dim].to(wide) * scale.to(wide)).to(dtype)


@dequantize_entries.register_fake
def _values_shape(entries: Tensor, dtype: torch.dtype) -> Tensor:
    return entries.new_empty((*entries.shape[:-1], head_dim_of(entries)), dtype=dtype)


def write_entries(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert keys or values [..., D] to entries of a cache of `dtype`."""
    if dtype == torch.int8:
        return quantize_entries(x)
    return x if x.dtype == dtype else x.to(dtype)


def read_entries(entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert entries of a cache to keys or values [..., D] of `dtype`."""
    if entries.dtype != torch.int8:
        return entries if entries.dtype == dtype else entries.to(dtype)
    return dequantize_entries(entries, dtype)


def entry_length(head_dim: int, dtype: torch.dtype) -> int:
    """Return the elements of an entry of `dtype` for a head of `head_dim`."""
    return head_dim + (SCALE_BYTES if dtype == torch.int8 else 0)


def head_dim_of(entries: Tensor) -> int:
    """Return D of the entries of a cache [..., D] or [..., D + SCALE_BYTES]."""
    return entries.shape[-1] - entry_length(0, entries.dtype)


def are_readable(entries: Tensor, dtype: torch.dtype) -> bool:
    """Whether operators whose queries have `dtype` read the entries of a cache."""
    return entries.dtype == dtype or (entries.dtype == torch.int8 and dtype in READERS)
