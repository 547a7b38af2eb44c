"""`--table-quant int8-lossless`: an INT8 copy of the target's output table, which tells where its
largest logits may be, so that greedy rounds of few rows read half of the table's bytes."""

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node

import eagle_aot.triton_kernels.screened_table.op  # noqa: F401 - the operator
from eagle_aot.artifact import LOSSLESS, TABLE_SCREEN
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.graph_checks.nodes import argument_tensor
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.dense_rows import LINEAR, insert_call, replace_node
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.triton_kernels.screened_table.packing import ScreenCopy, screen_copy

LARGEST_ONLY = "largest_only"
"""The input int64 [1] that is 1 where only each row's largest logit is read."""

OPTION = f"--table-quant {LOSSLESS}"
LEAST_CAP = 30.0
"""The soft cap below which the kernels might take different logits for equal ones."""


class TableScreen(nn.Module):
    """A `ScreenCopy` as parameters of a program: of a buffer AOTInductor makes another copy."""

    def __init__(self, copy: ScreenCopy) -> None:
        super().__init__()
        for name in ScreenCopy.__slots__:
            self.register_parameter(name, nn.Parameter(getattr(copy, name), requires_grad=False))


def screen_table(pair: Pair) -> None:
    """Give a pair the INT8 copy of its target's output table, `pair.table_screen`.

    What the target never chooses raises no lower bound. Raises UnsupportedError for a table that is
    quantised, and for a soft cap below `LEAST_CAP`.
    """
    target = pair.target
    assert isinstance(target, TapDecoder)
    if not isinstance(target.lm_head, nn.Linear | None):
        raise UnsupportedError(f"{OPTION}: the output table is quantised: leave it out")
    cap = target.config.final_logit_softcapping if isinstance(target, Gemma4Target) else None
    if cap is not None and cap < LEAST_CAP:
        raise UnsupportedError(f"{OPTION}: logits are capped at {cap}: leave it out")
    copy = screen_copy(target.lm_head_weight.detach())
    if pair.image_tokens is not None:
        copy.errors[list(pair.image_tokens.never)] = torch.finfo(torch.float32).max
    pair.table_screen = TableScreen(copy)


def screen_logits(program: ExportedProgram) -> None:
    """Multiply with the output table by `eagle_aot::screened_logits`, in place, in a method with
    the input `LARGEST_ONLY`."""
    graph, names = program.graph, program.graph_signature.inputs_to_parameters
    placeholders = {
        names.get(node.name, node.name): node for node in graph.find_nodes(op="placeholder")
    }
    copy = [placeholders[f"{TABLE_SCREEN}.{name}"] for name in ScreenCopy.__slots__]
    product = _table_product(graph, features=len(argument_tensor(copy[0])))
    with graph.inserting_before(product):
        operator = torch.ops.eagle_aot.screened_logits.default
        arguments = *product.args, *copy, placeholders[LARGEST_ONLY]
        screened = insert_call(graph, product, operator, *arguments)
    replace_node(program, product, screened)
    program.graph_module.recompile()


def _table_product(graph: Graph, features: int) -> Node:
    """Return the last linear with so many features: a drafter's that follow have fewer. The table
    may have another name than the target's, if a drafter shares it."""
    linears = graph.find_nodes(op="call_function", target=LINEAR)
    *_, last = (node for node in linears if len(argument_tensor(node.args[1])) == features)
    return last
