"""ExecuTorch's lowering without what it does over and over, for the same program."""

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack._passes import XNNPACKPassManager, XNNPACKRemoveCloneOpsTransform
from executorch.exir import lowered_backend_module
from torch.export import ExportedProgram, default_decompositions
from torch.fx import GraphModule, Node

from eagle_aot.export.graph_checks.operators import ROUNDING
from eagle_aot.export.lowering.joined_passes import joined_passes

PASSES = [XNNPACKRemoveCloneOpsTransform]
"""The one of XNNPACK's that does something where all operators are `PLAIN`."""

PLAIN = frozenset(
    {
        *("aten::_softmax", "aten::add", "aten::bmm", "aten::clone", "aten::cos", "aten::div"),
        *("aten::gelu", "aten::linear", "aten::mul", "aten::neg", "aten::permute_copy"),
        *("aten::rsqrt", "aten::sigmoid", "aten::sin", "aten::tanh", "aten::unsqueeze_copy"),
        *ROUNDING,
    }
)
"""Operators that none of the other passes looks for."""

COLLECT_EVERY = 50_000, 20, 50
"""What `gc.set_threshold` is told. Python's own 700 has it look through graphs of millions of
objects thousands of times: an eighth of a lowering."""

MOST_JOINED = 5
"""Tensors that one `cat` may have before a pass takes it apart."""


@contextmanager
def quick_passes() -> Iterator[None]:
    """Lower with each pass where it has something to do, and sort graphs in place.

    XNNPACK traces a partition anew for each of its 17 passes, nearly all of which look for
    operators that our graphs have not. ExecuTorch copies and compiles the whole graph anew for
    each partition that it takes out, to have it in order, and decomposes it twice.
    """
    with (
        patch.object(xnnpack_preprocess, "XNNPACKPassManager", NeededPasses),
        patch.object(lowered_backend_module, "legalize_graph", sort_in_place),
        decomposed_once(),
        joined_passes(),
    ):
        yield


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage as rarely as `COLLECT_EVERY` says."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class NeededPasses(XNNPACKPassManager):
    """XNNPACK's passes over a partition: `PASSES` where others have nothing to do."""

    def __init__(self, program: ExportedProgram, passes: Any = None) -> None:
        calls = (node for node in program.graph.nodes if node.op == "call_function")
        super().__init__(program, passes or (PASSES if all(map(_is_plain, calls)) else None))


def _is_plain(node: Node) -> bool:
    target = getattr(node.target, "_op", node.target)  # an edge operator is one around another
    if not isinstance(target, torch._ops.OpOverload):
        return True  # picks an output
    name = target._schema.name
    if name == "aten::cat":
        assert isinstance(node.args[0], list | tuple)
        return len(node.args[0]) <= MOST_JOINED
    return name in PLAIN


def sort_in_place(module: GraphModule) -> GraphModule:
    """Put the nodes of a graph, of whatever order, behind those that they read; none is copied.

    Nodes that are in order stay in it.
    """
    graph = module.graph
    order = list(graph.nodes)
    done: set[Node] = set()
    last = None
    waiting: deque[Node] = deque(order)
    while waiting:
        node = waiting[0]
        missing = [source for source in node.all_input_nodes if source not in done]
        if missing:
            waiting.extendleft(missing)
            continue
        waiting.popleft()
        if node in done:
            continue
        if last is not None and last.next is not node:
            last.append(node)
        done.add(node)
        last = node
    return module


@contextmanager
def decomposed_once() -> Iterator[None]:
    """Decompose a program while it is made functional, which ExecuTorch does before."""
    run, whole = ExportedProgram.run_decompositions, list[ExportedProgram]()

    def run_once(program: ExportedProgram, table: Any = None, **options: Any) -> ExportedProgram:
        if program in whole:
            return program
        if type(table) is not dict or table:  # ExecuTorch's own tables are equal to {} until used
            return run(program, table, **options)
        table = default_decompositions()
        table.pop(torch.ops.aten.linear.default)  # which XNNPACK takes whole
        whole.append(run(program, table, **options))
        return whole[-1]

    with patch.object(ExportedProgram, "run_decompositions", run_once):
        yield
