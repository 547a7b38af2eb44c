"""Replace dense linears of few rows in a traced method by the project's kernel for them."""

import math

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.node import map_arg

import eagle_aot.triton_kernels.dense_gemm.op  # noqa: F401 - the operator
from eagle_aot.export.graph_checks.nodes import argument_tensor
from eagle_aot.triton_kernels.dense_gemm.tiling import DENSE_TILES, choose_splits

LINEAR = torch.ops.aten.linear.default
VECTOR = 8
"""Columns that the kernel loads at once."""


def read_dense_weights_once(
    program: ExportedProgram, multiprocessors: int, *, few_rows: bool
) -> None:
    """Call `eagle_aot::dense_small_m` for linears with bfloat16 weights, in place.

    In a method of `few_rows` that is every one of them; in others those whose input has a fixed few
    rows, such as a prompt's last one.
    """
    linears = [node for node in program.graph.nodes if node.target is LINEAR]
    for node in linears:
        if _is_served(node) and (few_rows or _has_few_rows(node)):
            with program.graph.inserting_before(node):
                product = _product(program.graph, node, multiprocessors)
            replace_node(program, node, product)
    program.graph_module.recompile()


def replace_node(program: ExportedProgram, node: Node, other: Node) -> None:
    """Use `other` in place of `node` everywhere, outputs included, and erase `node`."""
    node.replace_all_uses_with(other)
    program.graph_signature.replace_all_uses(node.name, other.name)
    program.graph.erase_node(node)


def _is_served(node: Node) -> bool:
    x, weight = (argument_tensor(argument) for argument in node.args[:2])
    is_bfloat16 = x.dtype == weight.dtype == torch.bfloat16
    return is_bfloat16 and weight.is_contiguous() and weight.shape[1] % VECTOR == 0


def _has_few_rows(node: Node) -> bool:
    rows = math.prod(argument_tensor(node.args[0]).shape[:-1])
    return isinstance(rows, int) and rows <= DENSE_TILES[-1].rows


def _product(graph: Graph, node: Node, multiprocessors: int) -> Node:
    """Insert the operator, the sum of its parts in bfloat16, and that plus the bias of `node`."""
    product = _sum(graph, node, multiprocessors)
    biases = [bias for bias in node.args[2:] if bias is not None]
    return (
        insert_call(graph, node, torch.ops.aten.add.Tensor, product, *biases) if biases else product
    )


def _sum(graph: Graph, node: Node, multiprocessors: int) -> Node:
    features, columns = argument_tensor(node.args[1]).shape
    splits = choose_splits(features, columns, multiprocessors)
    operator = torch.ops.eagle_aot.dense_small_m.default
    parts = insert_call(graph, node, operator, *node.args[:2], splits)
    if splits == 1:
        return insert_call(graph, node, torch.ops.aten.select.int, parts, 0, 0)
    total = insert_call(graph, node, torch.ops.aten.sum.dim_IntList, parts, [0])
    return insert_call(graph, node, torch.ops.aten.to.dtype, total, torch.bfloat16)


def insert_call(
    graph: Graph, origin: Node, operator: torch._ops.OpOverload, *arguments: object
) -> Node:
    """Insert a node that calls `operator`, with its fake result and the metadata of `origin`.

    Arguments may be lists of nodes.
    """
    call = graph.call_function(operator, arguments)  # type: ignore[arg-type]
    values = map_arg(arguments, argument_tensor)  # type: ignore[type-var]
    call.meta = {**origin.meta, "val": operator(*values)}
    return call
