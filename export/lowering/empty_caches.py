"""Caches, which are all zero, that take neither memory nor disk while a program is lowered."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
from executorch.backends.cuda import cuda_backend, cuda_weight_collector
from torch import Tensor, nn

from eagle_aot.common.zeros import untouched_zeros

CHUNK = 2**24  # bytes


@contextmanager
def caches_kept_empty() -> Iterator[None]:
    """Let the CUDA backend make zeros that no page of memory stands behind, and write holes.

    For each method it makes every cache anew, and a file of it, until all methods are compiled: for
    many sequences more than the weights. Before that it counts what of each is not zero, which
    takes eight times as long as finding nothing.
    """
    write = cuda_weight_collector._write_tensor_storage

    def write_storage(tensor: Tensor, path: str) -> bytes:
        return write_holes(tensor, path) if is_zero(tensor) else write(tensor, path)

    def zeros_like(like: Tensor, device: str | torch.device) -> Tensor:
        return untouched_zeros(like).to(device)

    with (
        patch.object(cuda_backend, "_is_kv_buffer", is_empty_cache),
        patch.object(cuda_backend, "_full_zeros_preserving_strides", zeros_like),
        patch.object(cuda_weight_collector, "_write_tensor_storage", write_storage),
    ):
        yield


def is_empty_cache(name: str, value: object) -> bool:
    """Whether that is a buffer of a cache which holds nothing but zeros."""
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or value.is_meta:
        return False
    return "kv_cache" in name and is_zero(value)


def is_zero(tensor: Tensor) -> bool:
    """Whether the tensor lies on the host and its whole storage is zero."""
    storage = tensor.untyped_storage()
    if tensor.is_cuda or not storage.nbytes():
        return False
    return not torch.empty(0, dtype=torch.uint8).set_(storage).any()


def write_holes(tensor: Tensor, path: str) -> bytes:
    """Make a file of as many zeros as the storage has; returns their SHA-256."""
    size = tensor.untyped_storage().nbytes()
    with Path(path).open("wb") as file:
        file.truncate(size)
    return digest_of_zeros(size)


@cache
def digest_of_zeros(size: int) -> bytes:
    """SHA-256 of so many zero bytes; a model's caches are of two or three sizes."""
    digest, zeros = hashlib.sha256(), bytes(CHUNK)
    for left in range(size, 0, -CHUNK):
        digest.update(zeros[:left])
    return digest.digest()
