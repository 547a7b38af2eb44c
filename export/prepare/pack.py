"""INT4 linears in the order that the GPU kernels read, for the backend that has them."""

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.prepare.renew import Model, exchange, taken_over
from eagle_aot.targets.decoder.residual import ResidualLayer
from eagle_aot.targets.decoder.shared_input import SharedInput
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear

Kind = TypeVar("Kind", bound=nn.Module)


def pack_int4(model: Model, multiprocessors: int) -> Model:
    """The model with every INT4 linear packed; those that share an input become one module.

    `model` is given up for it, and weights are packed one after another, so that there never is a
    second model in memory. Raises UnsupportedError, and leaves `model` alone, for a weight that the
    kernels cannot read.
    """
    for name, linear in _each(model, Int4Linear):
        if reason := linear.weight.unpackable:
            raise UnsupportedError(f"{name}: INT4 with {reason}, or use --backend xnnpack")
    packed = taken_over(model)
    for _, owner in _each(packed, SharedInput):
        owner.fuse(multiprocessors)
    for _, linear in _each(packed, Int4Linear):
        exchange(packed, linear, PackedInt4Linear(linear.weight, multiprocessors))
    for _, layer in _each(packed, ResidualLayer):
        layer.join_packed()
    return packed


def _each(model: nn.Module, kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    """Name and module, of those of a kind: a list of them would keep alive what is replaced."""
    for name in [name for name, module in model.named_modules() if isinstance(module, kind)]:
        module = model.get_submodule(name)
        assert isinstance(module, kind)
        yield name, module
