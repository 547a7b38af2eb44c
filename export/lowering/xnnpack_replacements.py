"""Replacements of ExecuTorch's functions for `patches.XNNPACK`: the same programs in less time.

Each public function but `sort_nodes` takes what it replaces; parameters have the library's names.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.xnnpack._passes import XNNPACKRemoveCloneOpsTransform
from executorch.exir import EdgeCompileConfig
from executorch.exir.passes.fold_redundant_qdq_pass import FoldRedundantDequantizeQuantizePass
from executorch.exir.passes.prune_empty_tensors_pass import PruneEmptyTensorsPass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.remove_noop_pass import RemoveNoopPass, RemoveToCopyPass
from executorch.exir.passes.replace_sym_size_op_pass import ReplaceSymSizeOpPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from eagle_aot.export.graph_checks.operators import ROUNDING

PLAIN = frozenset(
    {
        *("aten::_softmax", "aten::add", "aten::bmm", "aten::clone", "aten::cos", "aten::div"),
        *("aten::gelu", "aten::linear", "aten::mul", "aten::neg", "aten::permute_copy"),
        *("aten::rsqrt", "aten::sigmoid", "aten::sin", "aten::tanh", "aten::unsqueeze_copy"),
        *ROUNDING,
    }
)
"""Operators that no pass of XNNPACK but `XNNPACKRemoveCloneOpsTransform` looks for."""

MAX_CONCATENATED = 5
"""Tensors that one `cat` may have before a pass of XNNPACK splits it."""


def needed_passes(manager: type[Any]) -> type[Any]:
    """Run one of XNNPACK's passes over a partition whose operators are all plain, all over others.

    Each traces the partition again.
    """

    class NeededPasses(manager):
        def __init__(self, exported_program: ExportedProgram, passes: Any = None) -> None:
            calls = (node for node in exported_program.graph.nodes if node.op == "call_function")
            plain = [XNNPACKRemoveCloneOpsTransform] if all(map(_is_plain, calls)) else None
            super().__init__(exported_program, passes or plain)

    return NeededPasses


def _is_plain(node: Node) -> bool:
    target = getattr(node.target, "_op", node.target)  # an edge operator wraps another one
    if not isinstance(target, torch._ops.OpOverload):
        return True  # selects an output
    name = target._schema.name
    if name == "aten::cat":
        assert isinstance(node.args[0], list | tuple)
        return len(node.args[0]) <= MAX_CONCATENATED
    return name in PLAIN


def sort_in_place(_: object) -> Callable[[GraphModule], GraphModule]:
    """Sort a graph without copying and compiling it."""
    return sort_nodes


def sort_nodes(gm: GraphModule) -> GraphModule:
    """Put each node of the module's graph after those that it reads, in place.

    Nodes that are in order keep it.
    """
    done: set[Node] = set()
    last: Node | None = None
    waiting: deque[Node] = deque(gm.graph.nodes)
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
    return gm


class TensorOperands(ScalarToTensorPass, SymToTensorPass, RemoveMixedTypeOperators):
    """Three passes in one trace: an operator goes through each `call_operator` in turn."""


def joined_passes(passes: Callable[[EdgeCompileConfig], tuple[list[Any], list[Any]]]) -> Any:
    """Return fewer passes before operators become edge operators; only one of them traces.

    Passes that change views are left out, because an earlier pass has made all views copies.
    """

    def few_passes(config: EdgeCompileConfig) -> tuple[list[Any], list[Any]]:
        passes_before = [
            ReplaceSymSizeOpPass,
            TensorOperands,
            RemoveNoopPass,
            PruneEmptyTensorsPass,
            RemoveToCopyPass,
            FoldRedundantDequantizeQuantizePass,
        ]
        return [each() for each in passes_before], passes(config)[1]

    return few_passes


def first_of_each(_: object) -> Callable[[list[Tensor]], list[list[Tensor]]]:
    """Take the first element of each tensor [N, ...] alone: passes read no other one."""

    def first(xs: list[Tensor]) -> list[list[Tensor]]:
        return [[tensor.select(0, 0) for tensor in xs]]

    return first
