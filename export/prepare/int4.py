"""INT4 linears as a backend runs them: dense, or packed in the order that GPU kernels read."""

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.prepare.modules import Model, clone_modules, consume, replace_module
from eagle_aot.targets.decoder.experts import ExpertChoice, Experts, Int4ExpertLinears
from eagle_aot.targets.decoder.layer import ResidualLayer, SharedInput
from eagle_aot.targets.decoder.packed_experts import PackedExperts, unpackable_reason
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from eagle_aot.targets.int4.linear import PackedModule

Kind = TypeVar("Kind", bound=nn.Module)


def dequantize_int4(model: Model, prefix: str = "") -> Model:
    """Return a copy of the model with a dense linear in place of every INT4 one whose name begins
    with `prefix`.

    XNNPACK has no weight-only INT4 kernel, and dequantising in every step would cost more than the
    product itself.
    """
    dense = clone_modules(model)
    for name, module in list(dense.named_modules()):
        assert not isinstance(module, PackedModule), f"{name} is packed for a GPU"
        if isinstance(module, Int4Linear | Int4ExpertLinears) and name.startswith(prefix):
            replace_module(dense, module, module.dense())
    return dense


def pack_int4(model: Model, multiprocessors: int) -> Model:
    """Return the model with every INT4 linear packed; linears that share an input become one.

    `model` is consumed, and weights are packed one after another, so that there is never a second
    model in memory. Raises UnsupportedError, and leaves `model` as it is, for a weight that the
    kernels cannot read.
    """
    for name, linear in _modules_of(model, Int4Linear):
        if reason := linear.weight.unpackable_reason:
            raise UnsupportedError(f"{name}: INT4 with {reason}, or use --backend xnnpack")
    for name, experts in _modules_of(model, Experts):
        if reason := unpackable_reason(experts):
            raise UnsupportedError(f"{name}: {reason}, or use --backend xnnpack")
    packed = consume(model)
    for _, owner in _modules_of(packed, SharedInput):
        owner.fuse_linears(multiprocessors)
    for _, linear in _modules_of(packed, Int4Linear):
        replace_module(packed, linear, PackedInt4Linear(linear.weight, multiprocessors))
    for _, experts in _modules_of(packed, Experts):
        replace_module(packed, experts, PackedExperts(experts))
    for _, choice in _modules_of(packed, ExpertChoice):
        choice.uses_operator = True
    for _, layer in _modules_of(packed, ResidualLayer):
        layer.fuse_branch_outputs()
        layer.input_layernorm.uses_operator = True  # the first one's is after no branch
    return packed


def _modules_of(model: nn.Module, kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    """Yield name and module of each of a kind: a list of them would keep replaced ones alive."""
    for name in [name for name, module in model.named_modules() if isinstance(module, kind)]:
        module = model.get_submodule(name)
        assert isinstance(module, kind)
        yield name, module
