"""Makes Triton's interpreter compute like a GPU, and cache what it computes from types."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

MMA_COLUMNS = 16
"""Columns of bfloat16 that one tensor core instruction multiplies."""


def compute_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace three operations of the interpreter that differ from every GPU.

    By numpy, it multiplies the bit patterns of bfloat16, truncates to bfloat16 instead of rounding,
    and sums a row of a product in an order that depends on the row. Checks without effect are left
    out.
    """
    skip_overflow_checks(monkeypatch)
    monkeypatch.setattr(interpreter, "_get_np_dtype", remember_dtypes(interpreter._get_np_dtype))
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", ordered_dot)
    monkeypatch.setattr(
        interpreter, "_convert_float", round_to_bfloat16(interpreter._convert_float)
    )
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call_once_patched)


def allocate_output(
    monkeypatch: pytest.MonkeyPatch, buffer: Tensor, *shapes: tuple[int, ...]
) -> None:
    """Let `new_empty` allocate outputs of these shapes at the start of `buffer` [n]."""
    allocate = Tensor.new_empty

    def from_buffer(x: Tensor, shape: Any, **options: Any) -> Tensor:
        if shape not in shapes:
            return allocate(x, shape, **options)
        return buffer[: math.prod(shape)].view(shape)

    monkeypatch.setattr(Tensor, "new_empty", from_buffer)


def skip_overflow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip a second computation of integers in 64 bits, a third of the interpreter's time.

    It is for an assertion that the interpreter drops without `debug`.
    """
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))


def remember_dtypes(original: Callable[[tl.dtype], np.dtype[Any]]) -> Callable[..., np.dtype[Any]]:
    """Cache numpy's dtypes; the interpreter makes a table of all of them for each look-up."""
    dtypes: dict[str, np.dtype[Any]] = {}

    def np_dtype(dtype: tl.dtype) -> np.dtype[Any]:
        scalar = dtype.scalar
        if scalar.name not in dtypes:
            dtypes[scalar.name] = original(scalar)
        return dtypes[scalar.name]

    return np_dtype


PATCHED: set[str] = set()
"""Modules whose triton.language has been patched."""


def call_once_patched(function: interpreter.InterpretedFunction, *args: Any, **named: Any) -> Any:
    """Call a function from within a kernel, without patching triton.language again.

    The interpreter patches it for each call, which takes longer than most functions, although it
    never restores it, and the launch of a kernel patches it again.
    """
    if function.fn.__module__ not in PATCHED:
        interpreter._patch_lang(function.fn)
        PATCHED.add(function.fn.__module__)
    return function.rewrite()(*args, **named)


def ordered_dot(
    _: object,
    a: interpreter.TensorHandle,
    b: interpreter.TensorHandle,
    d: interpreter.TensorHandle,
    *__: object,
) -> interpreter.TensorHandle:
    """Multiply with sums that run along k in one order for every row of a tile.

    As on tensor cores, 16 columns are added up and then added to the previous sum, so a long
    product equals a sequence of short ones.
    """
    left, right, total = float32(a), float32(b), d.data
    for k in range(0, left.shape[1], MMA_COLUMNS):
        columns = slice(k, k + MMA_COLUMNS)
        total = total + np.einsum("mk,kn->mn", left[:, columns], right[columns])
    return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


def float32(handle: interpreter.TensorHandle) -> np.ndarray:
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data.astype(np.float32)
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def round_to_bfloat16(original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Convert float32 to bfloat16 by rounding, and everything else as before."""

    def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype, mode: object) -> np.ndarray:
        if (source, target) != (tl.float32, tl.bfloat16):
            return original(data, source, target, mode)
        rounded = torch.from_numpy(np.ascontiguousarray(data)).bfloat16()
        return rounded.view(torch.int16).numpy().view(np.uint16)

    return convert


def remember_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the fields of block types and the shapes of tensors.

    Half of the interpreter's time is spent on wrapping the same few numbers again.
    """
    monkeypatch.setattr(core.block_type, "__init__", share_block_types(core.block_type.__init__))
    monkeypatch.setattr(core.tensor, "__init__", init_with_cached_shape)
    broadcast = skip_equal_shapes(TritonSemantic.broadcast_impl_value)
    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", broadcast)


def share_block_types(original: Any) -> Any:
    """Return a constructor with which equal block types share their fields."""
    fields: dict[tuple[Any, ...], dict[str, Any]] = {}

    def describe(block: core.block_type, element_ty: tl.dtype, shape: Any) -> None:
        key = element_ty.name, *map(core._unwrap_if_constexpr, shape)
        if key not in fields:
            original(block, element_ty, shape)
            fields[key] = block.__dict__
        block.__dict__ = fields[key]

    return describe


SHAPE = "shape_of_tensors"


def init_with_cached_shape(tensor: tl.tensor, handle: Any, type: tl.dtype) -> None:
    """Initialise a tensor; tensors of one type share their shape."""
    if SHAPE not in type.__dict__:
        sizes = type.shape if type.is_block() else ()
        shape = core.tuple([core.constexpr(size) for size in sizes])
        numel = 1
        for size in sizes:
            numel *= size
        type.__dict__[SHAPE] = shape, core.constexpr(numel)
    tensor.handle = handle
    tensor.type = type
    tensor.dtype = type.scalar
    tensor.shape, tensor.numel = type.__dict__[SHAPE]


def skip_equal_shapes(broadcast: Any) -> Any:
    """Return a broadcast that does nothing for two tensors of one shape."""

    def broadcast_different(semantic: Any, left: tl.tensor, right: tl.tensor) -> Any:
        if left.shape.values == right.shape.values:
            return left, right
        return broadcast(semantic, left, right)

    return broadcast_different
