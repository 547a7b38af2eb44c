"""Copies of a model that share its tensors, so that modules can be replaced in a copy alone."""

import copy
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def clone_modules(model: Model) -> Model:
    """Return a copy of all modules of `model` over the same tensors, caches included.

    A module that `model` holds in several places is one module in the copy as well.
    """
    clones: dict[int, nn.Module] = {}
    return _clone(model, clones)


def _clone(module: Model, clones: dict[int, nn.Module]) -> Model:
    if id(module) in clones:
        existing = clones[id(module)]
        assert isinstance(existing, type(module))
        return existing
    clone = copy.copy(module)
    clones[id(module)] = clone
    for kind in ("_parameters", "_buffers", "_modules"):
        clone.__dict__[kind] = dict(getattr(module, kind))
    for name, child in module._modules.items():
        clone._modules[name] = None if child is None else _clone(child, clones)
    return clone


def replace_module(model: nn.Module, module: nn.Module, other: nn.Module) -> None:
    """Put `other` wherever `model` holds `module`: target and drafter may share a table."""
    for owner in model.modules():
        for name, child in owner._modules.items():
            if child is module:
                owner._modules[name] = other


def consume(model: Model) -> Model:
    """Return a copy as `clone_modules` does, and remove all children from `model`.

    So weights of modules that are replaced in the copy are freed one after another, unless someone
    else holds a part of `model`, which stays as it was.
    """
    clone = clone_modules(model)
    model._modules.clear()
    return clone
