"""ExecuTorch's way to edge operators in two traces of a graph, where it takes seven.

Each of its passes runs the whole graph anew to change operators one at a time. Here those that
follow one another are one class, in which an operator goes from one's `call_operator` to the
next's by `super()`, as it does from one trace to the next: the program is the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from executorch.exir import EdgeCompileConfig
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.fold_redundant_qdq_pass import FoldRedundantDequantizeQuantizePass
from executorch.exir.passes.prune_empty_tensors_pass import PruneEmptyTensorsPass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.remove_noop_pass import RemoveNoopPass, RemoveToCopyPass
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass
from executorch.exir.passes.replace_sym_size_op_pass import ReplaceSymSizeOpPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from executorch.exir.program import _program
from torch._export.passes import replace_view_ops_with_view_copy_ops_pass as torchs
from torch._ops import OpOverload


class ViewCopies(ExportPass):
    """PyTorch's pass of the same task, which is of another base class: copies instead of views."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        return super().call_operator(_without_view(op), args, kwargs, meta)


class TensorArguments(ViewCopies, ScalarToTensorPass, SymToTensorPass):
    """No views, and tensors wherever an operator's schema has one."""


class EdgeOperators(RemoveMixedTypeOperators, OpReplacePass):
    """Operators of the edge dialect, whose operands are of one type."""


BEFORE_EDGE = [
    TensorArguments,
    *(RemoveNoopPass, PruneEmptyTensorsPass, RemoveToCopyPass),
    FoldRedundantDequantizeQuantizePass,
]
"""What runs before `EdgeOperators`; only the first traces."""


@contextmanager
def joined_passes() -> Iterator[None]:
    """Make programs of edge operators in two traces each."""
    with (
        patch.object(_program, "ReplaceViewOpsWithViewCopyOpsPass", ReplaceSymSizeOpPass),
        patch.object(_program, "_get_aten_to_edge_passes", _before_edge),
        patch.object(_program, "OpReplacePass", EdgeOperators),
    ):
        yield


def _before_edge(config: EdgeCompileConfig) -> tuple[list[Any], list[Any]]:
    return [each() for each in BEFORE_EDGE], _program.base_post_op_replace_passes


def _without_view(op: Any) -> Any:
    if not isinstance(op, OpOverload):
        return op
    functional = torchs._NON_FUNCTIONAL_OPS_TO_FUNCTIONAL_OPS.get(op)
    return functional or torchs.get_view_copy_of_view_op(op._schema) or op
