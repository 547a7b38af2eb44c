"""Replacements of functions of Inductor and of ExecuTorch's CUDA backend for `patches.CUDA`.

Each public function takes what it replaces; parameters have the library's names.
"""

import hashlib
import shutil
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.ir import TensorBox
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram

from eagle_aot.common.tensors import untouched_zeros

CHUNK = 2**24
"""Bytes that are hashed at once."""

Analysis = Callable[[Any, dict[str, Any], Mapping[str, Any]], Any]
"""(kernel, arguments, TMA descriptors) -> the tensors that the kernel writes, by their names."""


def analyse_once(analyse: Analysis) -> Analysis:
    """Analyse a Triton kernel once for all calls whose arguments are of the same kinds.

    The result is read off the kernel's IR, for which torch replaces every tensor without values by
    an empty one of its dtype and every symbolic number by 2. It also depends on the kernel and on
    the names, values and order of the other arguments; the GPU is the same throughout. A call with
    descriptors, or with an argument whose kind is not known, is analysed again. Each caller gets a
    separate copy.
    """
    results: dict[Hashable, Any] = {}

    def analyse_or_copy(kernel: Any, kwargs: dict[str, Any], tma_descriptor_metadata: Any) -> Any:
        key = None if tma_descriptor_metadata else _kernel_key(kernel, kwargs)
        if key is None:
            return analyse(kernel, kwargs, tma_descriptor_metadata)
        if key not in results:
            results[key] = analyse(kernel, kwargs, tma_descriptor_metadata)
        return deepcopy(results[key])

    return analyse_or_copy


def put_in_memory(require_strides: Callable[..., Any]) -> Any:
    """Put what a kernel takes in memory for all kernels, not in a copy for each of them."""

    def put_and_require(x: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(x, TensorBox):
            x.realize()
        return require_strides(x, *arguments, **named)

    return staticmethod(put_and_require)  # in place of a class method


def _kernel_key(kernel: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return what the kernel's IR depends on, None where that is not known.

    For a call with options, such as a number of warps, torch wraps the kernel in a tuner with one
    configuration; of several it analyses the first.
    """
    configs = getattr(kernel, "configs", None)
    try:
        tuned = _kinds(configs[0].kwargs) if configs else ()
        key = kernel if configs is None else kernel.fn, tuned, _kinds(kwargs)
        hash(key)
    except TypeError:
        return None
    return key


def _kinds(arguments: Mapping[str, Any]) -> Hashable:
    return tuple((name, _kind(value)) for name, value in arguments.items())


def _kind(value: Any) -> Hashable:
    """Raises TypeError for a tensor with values, whose address counts too."""
    if isinstance(value, FakeTensor | TensorBox):
        return type(value), value.dtype
    if isinstance(value, Tensor):
        raise TypeError("a tensor with values")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | sympy.Expr):
        return "symbolic"
    return type(value), value


def compile_cuda_here(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel of CUDA C++ in this process: torch's others do not know of it."""

    def compile_it(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
        is_cuda = "CUDA: tl.constexpr" in source_code
        with config.patch(compile_threads=1) if is_cuda else nullcontext():
            return compile_kernel(self, kernel_name, source_code, device_str)

    return compile_it


def zeros_without_memory(_: object) -> Callable[[Tensor, Any], Tensor]:
    """Make a cache's zeros on the host without memory; takes the tensor that they are to be like
    and a device."""
    return lambda x, device: untouched_zeros(x).to(device)


def write_holes(write: Callable[[Tensor, str], bytes]) -> Callable[[Tensor, str], bytes]:
    """Write a storage of zeros as a file without blocks; returns the SHA-256 of the contents."""

    def write_zeros_or_bytes(tensor: Tensor, path: str) -> bytes:
        if not _is_zero(tensor):
            return write(tensor, path)
        size = tensor.untyped_storage().nbytes()
        with Path(path).open("wb") as file:
            file.truncate(size)
        return _digest_of_zeros(size)

    return write_zeros_or_bytes


def _is_zero(tensor: Tensor) -> bool:
    """Whether the tensor is on the host and its whole storage is zero."""
    storage = tensor.untyped_storage()
    if tensor.is_cuda or not storage.nbytes():
        return False
    return not torch.empty(0, dtype=torch.uint8).set_(storage).any()


@cache
def _digest_of_zeros(size: int) -> bytes:
    """SHA-256 of so many zero bytes; a model's caches are of two or three sizes."""
    digest, zeros = hashlib.sha256(), bytes(CHUNK)
    for left in range(size, 0, -CHUNK):
        digest.update(zeros[:left])
    return digest.digest()


def keep_strides(_: object) -> Callable[[ExportedProgram], ExportedProgram]:
    """Leave constants as they lie in memory."""
    return lambda exported_program: exported_program


def object_per_kernel(convert: Callable[..., str]) -> Callable[..., str]:
    """Convert a copy of a kernel's binary, so that no two kernels share an object file.

    torch 2.11 names a binary after its contents and the object after the binary. Of two kernels
    that differ in a constant which no instruction depends on, the second's object would replace the
    first's and be linked twice ("multiple definition of"), as in small models for two sequences.
    """
    number = count()

    def convert_copy(cubin_file: str, kernel_name: str, ld: str, objcopy: str) -> str:
        copy = shutil.copyfile(cubin_file, f"{cubin_file}.{next(number)}")
        return convert(copy, kernel_name, ld, objcopy)

    return convert_copy
