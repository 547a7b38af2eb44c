"""Caches what Triton's interpreter computes from types for every result."""

from typing import Any

import pytest
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic


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
