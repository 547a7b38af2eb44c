"""Asking torch once, not for every call, which of its arguments a Triton kernel writes."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
from torch._subclasses import FakeTensor

ANALYSES = ("identify_mutated_tensors", "identify_accessed_tensors")
"""What the function is called: in torch 2.11, and in 2.13."""

Analysis = Callable[[Any, dict[str, Any], Mapping[str, Any]], Any]


@contextmanager
def mutations_memoised() -> Iterator[None]:
    """Let torch analyse a kernel once for all calls with arguments of the same kind.

    The analysis compiles the kernel to Triton's IR at each of a model's calls, in each of several
    passes: two minutes of lowering 60 layers. A torch without such a function is left as it is.

    Its result, names of arguments, is read off that IR. For the IR torch replaces every tensor
    without values by an empty one of its dtype and every symbolic number by 2. What else it depends
    on is the kernel, and the names and values of the other arguments, constexprs among them: the
    GPU is the same throughout.
    """
    from torch._higher_order_ops import triton_kernel_wrap  # callers look the name up there

    name = next((name for name in ANALYSES if hasattr(triton_kernel_wrap, name)), None)
    if name is None:
        yield
        return
    with patch.object(triton_kernel_wrap, name, memoised(getattr(triton_kernel_wrap, name))):
        yield


def memoised(analyse: Analysis) -> Analysis:
    """`analyse(kernel, arguments, tma_descriptors)`, each result a copy of its own.

    A call with descriptors, or with an argument that is not known to count by its kind or value
    alone, is analysed anew.
    """
    results: dict[Hashable, Any] = {}

    def analyse_once(
        kernel: Any, kwargs: dict[str, Any], tma_descriptor_metadata: Mapping[str, Any]
    ) -> Any:
        key = None if tma_descriptor_metadata else _key(kernel, kwargs)
        if key is None:
            return analyse(kernel, kwargs, tma_descriptor_metadata)
        if key not in results:
            results[key] = analyse(kernel, kwargs, tma_descriptor_metadata)
        return deepcopy(results[key])

    return analyse_once


def _key(kernel: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
    """What the kernel's IR depends on; None where that is not known.

    For a call with options, such as a number of warps, torch makes a tuner with one configuration
    around the kernel. Of several it analyses the first. Arguments count in their order too: after
    an analysis that failed all tensors are named, in that order.
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
    """Raises TypeError for a tensor with values, which counts by its address too."""
    from torch._inductor.ir import TensorBox  # takes seconds, which only lowering should

    if isinstance(value, FakeTensor | TensorBox):
        return type(value), value.dtype
    if isinstance(value, torch.Tensor):
        raise TypeError("a tensor with values")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | sympy.Expr):
        return "symbolic"
    return type(value), value
