"""What Triton's interpreter makes of a type, remembered: otherwise made anew for every result."""

from typing import Any

import pytest
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic


def remember_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's type is told by its elements and shape, a tensor's shape by its type: half of the
    interpreter's time goes into wrapping the same few numbers again."""
    monkeypatch.setattr(core.block_type, "__init__", described_once(core.block_type.__init__))
    monkeypatch.setattr(core.tensor, "__init__", shaped_by_type)
    broadcast = unless_alike(TritonSemantic.broadcast_impl_value)
    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", broadcast)


def described_once(original: Any) -> Any:
    """The constructor of a block's type; types that are equal share their fields."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def describe(block: core.block_type, element_ty: tl.dtype, shape: Any) -> None:
        key = element_ty.name, *map(core._unwrap_if_constexpr, shape)
        if key not in found:
            original(block, element_ty, shape)
            found[key] = block.__dict__
        block.__dict__ = found[key]

    return describe


SHAPE = "shape_of_tensors"


def shaped_by_type(tensor: tl.tensor, handle: Any, type: tl.dtype) -> None:
    """The constructor of a tensor; those of one type share their shape."""
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


def unless_alike(broadcast: Any) -> Any:
    """Broadcasting of two tensors, left out where they have one shape."""

    def broadcast_unalike(semantic: Any, left: tl.tensor, right: tl.tensor) -> Any:
        if left.shape.values == right.shape.values:
            return left, right
        return broadcast(semantic, left, right)

    return broadcast_unalike
