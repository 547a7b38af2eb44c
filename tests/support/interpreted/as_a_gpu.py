"""Triton's interpreter made to compute as a GPU does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

MMA_COLUMNS = 16
"""Of bfloat16, that one instruction of a tensor core multiplies."""


def compute_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter leaves three things to numpy in which it differs from every GPU.

    It multiplies the bit patterns of bfloat16, truncates to bfloat16 instead of rounding, and a
    BLAS product sums a row in an order that depends on the row's place. What it computes for
    nothing is left out.
    """
    skip_overflow_checks(monkeypatch)
    monkeypatch.setattr(interpreter, "_get_np_dtype", remembering(interpreter._get_np_dtype))
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", ordered_dot)
    monkeypatch.setattr(interpreter, "_convert_float", rounding(interpreter._convert_float))
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call_once_patched)


def launched_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[None]:
    """While it is suspended: arithmetic as there; the modules' kernels unwrapped, since torch 2.11
    wraps compiled ones only; and what a kernel allocates and forgets to write is NaN."""
    compute_as_a_gpu(monkeypatch)
    for module in modules:
        monkeypatch.setattr(module, "wrap_triton", lambda interpreted: interpreted)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def skip_overflow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers are added and multiplied in 64 bits as well, for an assertion that, without
    `debug`, the interpreter drops: a third of its time."""
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))


def remembering(original: Callable[[tl.dtype], np.dtype[Any]]) -> Callable[..., np.dtype[Any]]:
    """Numpy's type of a tensor's elements: the interpreter makes a table of all for each answer."""
    found: dict[str, np.dtype[Any]] = {}

    def np_dtype(dtype: tl.dtype) -> np.dtype[Any]:
        scalar = dtype.scalar
        if scalar.name not in found:
            found[scalar.name] = original(scalar)
        return found[scalar.name]

    return np_dtype


PATCHED: set[str] = set()
"""Modules whose functions see an interpreted language for good."""


def call_once_patched(function: interpreter.InterpretedFunction, *args: Any, **named: Any) -> Any:
    """Call a function from within a kernel.

    The interpreter would patch triton.language anew for each such call, which takes it longer than
    most functions do, though it never undoes that, and a kernel's launch patches its own.
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
    """A product whose sums run along k in one order, wherever in the tile a row lies.

    As on tensor cores 16 columns are added up, and then to what there is: a long product is one of
    short ones in turn.
    """
    left, right, total = float32(a), float32(b), d.data
    for k in range(0, left.shape[1], MMA_COLUMNS):
        some = slice(k, k + MMA_COLUMNS)
        total = total + np.einsum("mk,kn->mn", left[:, some], right[some])
    return interpreter.TensorHandle(total, d.dtype.scalar)


def float32(handle: interpreter.TensorHandle) -> np.ndarray:
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data.astype(np.float32)
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def rounding(original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype, mode: object) -> np.ndarray:
        if (source, target) != (tl.float32, tl.bfloat16):
            return original(data, source, target, mode)
        rounded = torch.from_numpy(np.ascontiguousarray(data)).bfloat16()
        return rounded.view(torch.int16).numpy().view(np.uint16)

    return convert
