"""Operators that write their arguments, as AOTInductor can take them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import GraphModule, Node


@contextmanager
def writes_unwrapped() -> Iterator[None]:
    """Let AOTInductor be given operators that write their arguments, not wrappers around them.

    Lowering wraps each in a function that returns what the operator would have written. AOTInductor
    takes an operator apart into its Triton kernels, but none that is wrapped: it would call it, and
    a program has no such operator.
    """
    compile_module = torch._inductor.aot_compile

    def compile_unwrapped(module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        return compile_module(written_in_place(module), *args, **kwargs)

    with patch.object(torch._inductor, "aot_compile", compile_unwrapped):
        yield


def written_in_place(module: GraphModule) -> GraphModule:
    """Replace the wrappers by their operators; changes `module`.

    Nobody reads a value that is written but through the write, so nothing changes behind anybody's
    back. What is left of writing the results back, copies of buffers into themselves, goes.
    """
    from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

    for node in _calls(module, torch.ops.higher_order.auto_functionalized_v2):
        node.meta["only_clone_these_tensors"] = []
    decompose_auto_functionalized(module.graph)
    for copy in _calls(module, torch.ops.aten.copy_.default):
        if copy.args[0] is copy.args[1]:
            module.graph.erase_node(copy)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _calls(module: GraphModule, target: Any) -> list[Node]:
    return module.graph.find_nodes(op="call_function", target=target)
