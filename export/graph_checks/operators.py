"""No operator in a method that a backend may not be able to lower."""

import operator

import torch
from torch import SymBool, SymFloat, SymInt
from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.allowed import (
    ALLOWED,
    FACTOR_DTYPES,
    FACTORS,
    OWN_NAMESPACE,
    ROUNDING,
)
from eagle_aot.export.graph_checks.nodes import argument_tensor, calls, operator_name, tensors


def check_operators(name: str, program: ExportedProgram) -> None:
    """Every operator is one of `ALLOWED`, in a form that needs no kernel of torch's."""
    for node in calls(program):
        where = f"{name}: operator {node.target} at {node.name}"
        if not _is_allowed(node):
            raise ExportError(
                f"{where} is not known to lower to a kernel of the program's own; "
                "one that does belongs in export/graph_checks/allowed.py"
            )
        if problem := _fallback(node):
            raise ExportError(f"{where}: {problem}")


def check_matmuls(name: str, program: ExportedProgram) -> None:
    """Products are tuned Triton GEMMs for factors of one float dtype and two or three dimensions.

    Others (integers, float64, mixed dtypes, batches of batches) have no kernel.
    """
    for node in calls(program):
        kind = operator_name(node)
        if kind not in FACTORS:
            continue
        where = f"{name}: operator {node.target} at {node.name}: a product of"
        inputs = [x for source in node.all_input_nodes for x in tensors(source)]
        dtypes = sorted({str(x.dtype).removeprefix("torch.") for x in inputs})
        if len(dtypes) != 1 or inputs[0].dtype not in FACTOR_DTYPES:
            raise ExportError(f"{where} {' and '.join(dtypes)}")
        ranks = [argument_tensor(node.args[position]).ndim for position in FACTORS[kind]]
        if not all(rank in (2, 3) for rank in ranks):
            raise ExportError(f"{where} {ranks[0]} and {ranks[1]} dimensions")


def _is_allowed(node: Node) -> bool:
    name = operator_name(node)
    if name is not None:
        return name in ALLOWED | ROUNDING or name.startswith(OWN_NAMESPACE)
    # Python functions pick an output or compute with lengths; whatever else returns tensors is a
    # higher-order operator.
    lengths = int, float, bool, SymInt, SymFloat, SymBool
    return node.target is operator.getitem or isinstance(node.meta.get("val"), lengths)


def _fallback(node: Node) -> str | None:
    """Why this call of an allowed operator would still need a kernel of torch's."""
    name = operator_name(node)
    if name in ("aten::index", "aten::index_put"):
        indices = node.args[1]
        assert isinstance(indices, list | tuple)
        dtypes = {argument_tensor(index).dtype for index in indices if index is not None}
        if dtypes & {torch.bool, torch.uint8}:
            return "an index that is a mask"
    if name == "aten::index_put" and len(node.args) > 3 and node.args[3]:
        return "writes that accumulate"
    if name == "aten::pow" and not all(x.is_floating_point() for x in tensors(node)):
        return "a power of integers"
    return None
