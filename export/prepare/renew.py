"""A model anew, over the tensors that it has."""

import copy
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def renewed(model: Model) -> Model:
    """A model of the same tensors, whose modules can be exchanged: those of `model` stay.

    A module that stands in several places is one again. Caches are tensors, too.
    """
    memo: dict[int, nn.Module] = {}
    return _renewed(model, memo)


def _renewed(module: Model, memo: dict[int, nn.Module]) -> Model:
    if id(module) not in memo:
        anew = copy.copy(module)
        for kind in ("_parameters", "_buffers", "_modules"):
            anew.__dict__[kind] = dict(getattr(module, kind))
        memo[id(module)] = anew
        for name, child in module._modules.items():
            anew._modules[name] = None if child is None else _renewed(child, memo)
    found = memo[id(module)]
    assert isinstance(found, type(module))
    return found


def exchange(model: nn.Module, module: nn.Module, other: nn.Module) -> None:
    """Put `other` wherever in `model` the module stands: a table may be target's and drafter's."""
    for owner in model.modules():
        for name, child in owner._modules.items():
            if child is module:
                owner._modules[name] = other


def taken_over(model: Model) -> Model:
    """The same, for which `model` is given up: it has no children from here on.

    So weights that are exchanged are freed one after another, unless somebody holds a part of
    `model`, which stays as it was.
    """
    anew = renewed(model)
    model._modules.clear()
    return anew
