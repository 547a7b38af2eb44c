"""Which operators a method may hold: those that every backend lowers to code of its own.

The CUDA backend links a program against nothing of torch. What AOTInductor would leave to a kernel
of torch's (sorting, attention, linear algebra, random numbers) fails there, minutes into the
lowering. A test compares these names with Inductor's lowerings; extend them where it agrees. And no
control flow or shape may depend on values: a captured CUDA graph could not follow.
"""

import operator

import torch
from torch import SymBool, SymFloat, SymInt
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.scan import scan_op
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import (
    argument_tensor,
    calls,
    every_call,
    operator_name,
    tensors,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in text.split())


# Halves are taken by slicing: `split`, `chunk` and `unbind` have no kernel in the CUDA backend.
VIEWS = _names(
    "alias clone contiguous detach expand expand_as flatten lift_fresh_copy movedim mT narrow "
    "numpy_T permute reshape select slice squeeze swapaxes t transpose unflatten unsqueeze view "
    "view_as"
)

POINTWISE = _names(
    "__and__ __lshift__ __or__ __rshift__ __xor__ abs add bitwise_and bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copy "
    "cos div eq erf exp exp2 fill floor ge gelu gt le log logical_and logical_not logical_or lt "
    "masked_fill maximum minimum mul ne neg pow reciprocal relu remainder round rsqrt rsub sigmoid "
    "sign silu sin softplus sqrt square sub tanh to type_as where"
)

REDUCTIONS = _names("all amax amin any argmax argmin log_softmax mean softmax sum")

FACTORS = {
    "aten::linear": (0, 1),
    "aten::matmul": (0, 1),
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
}
"""Products, and which of their arguments are the factors."""

FACTOR_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Inductor makes Triton GEMMs of factors of these dtypes."""

INDEXING = _names("cat embedding gather index index_copy index_put index_select stack")

CREATION = _names(
    "arange full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zeros "
    "zeros_like"
)

DECOMPOSED = _names("_to_copy _unsafe_view floor_divide")
"""An image encoder holds these once others of its operators are decomposed."""

# Assertions about shapes, for which no code is generated.
STATEMENTS = _names("_assert_tensor_metadata sym_size")

ALLOWED = (
    VIEWS | POINTWISE | REDUCTIONS | set(FACTORS) | INDEXING | CREATION | DECOMPOSED | STATEMENTS
)

ROUNDING = frozenset(
    f"quantized_decomposed::{name}"
    for name in (
        "choose_qparams_per_token_asymmetric",
        "quantize_per_token",
        "dequantize_per_token",
        "dequantize_per_channel",
        "dequantize_per_channel_group",
    )
)
"""Quantise and dequantise inputs and weights of linears, which XNNPACK fuses into one kernel. No
method for CUDA holds them, as `--cpu-weights` is refused there."""

LOOP = torch.ops.higher_order.map_impl
"""A loop over rows, in which each reads the weights of its experts."""

ROUTING = _names("topk")
"""Operators of routers, which are allowed beside such loops. No method for CUDA holds either: there
routers and experts are operators of the project's own."""

OWN_NAMESPACE = "eagle_aot::"
"""The project's own operators, which are Triton kernels."""

GUARDS = frozenset(
    f"aten::{name}"
    for name in (
        "_assert_async",
        "_assert_scalar",
        "_local_scalar_dense",
        "item",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    )
)


def check_operators(name: str, program: ExportedProgram) -> None:
    """Raise ExportError unless all operators are allowed, in a form that needs no torch kernel.

    Loops over tokens, and branches beside them, are XNNPACK's alone: targets with recurrent states
    are refused on CUDA.
    """
    routes = any(node.target is LOOP for node in calls(program))
    steps = any(node.target is scan_op for node in every_call(program))
    for node in every_call(program):
        location = f"{name}: operator {node.target} at {node.name}"
        branches = steps and node.target is cond_op
        if not (_is_allowed(node) or branches or (routes and _is_routing(node))):
            raise ExportError(
                f"{location} is not known to lower to a kernel of the program's own; "
                "one that does belongs in export/graph_checks/operators.py"
            )
        if problem := _fallback(node):
            raise ExportError(f"{location}: {problem}")


def check_matmuls(name: str, program: ExportedProgram) -> None:
    """Raise ExportError unless factors of products have one float dtype and 2 or 3 dimensions.

    Those are tuned Triton GEMMs. Others (integers, float64, mixed dtypes) have no kernel.
    """
    for node in every_call(program):
        kind = operator_name(node)
        if kind not in FACTORS:
            continue
        location = f"{name}: operator {node.target} at {node.name}: a product of"
        inputs = [x for source in node.all_input_nodes for x in tensors(source)]
        dtypes = sorted({str(x.dtype).removeprefix("torch.") for x in inputs})
        if len(dtypes) != 1 or inputs[0].dtype not in FACTOR_DTYPES:
            raise ExportError(f"{location} {' and '.join(dtypes)}")
        ranks = [argument_tensor(node.args[position]).ndim for position in FACTORS[kind]]
        if not all(rank in (2, 3) for rank in ranks):
            raise ExportError(f"{location} {ranks[0]} and {ranks[1]} dimensions")


def _is_allowed(node: Node) -> bool:
    name = operator_name(node)
    if name is not None:
        return name in ALLOWED | ROUNDING or name.startswith(OWN_NAMESPACE)
    if node.target is scan_op:
        return True
    # Python functions pick an output or compute with lengths; others that return tensors are
    # higher-order operators.
    lengths = int, float, bool, SymInt, SymFloat, SymBool
    return node.target is operator.getitem or isinstance(node.meta.get("val"), lengths)


def _is_routing(node: Node) -> bool:
    return node.target is LOOP or operator_name(node) in ROUTING


def _fallback(node: Node) -> str | None:
    """Return why this call of an allowed operator would still need a kernel of torch, if so."""
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
    if node.target is torch.ops.aten.view.dtype:
        return "a view of bits"
    return None


def check_data_dependence(name: str, program: ExportedProgram) -> None:
    """Raise ExportError where the host reads a value, asserts one, or a shape depends on one."""
    for node in every_call(program):
        if operator_name(node) in GUARDS:
            raise ExportError(f"{name}: data-dependent guard {node.target} at {node.name}")
        if symbols := free_unbacked_symbols(node.meta.get("val")):
            raise ExportError(
                f"{name}: data-dependent shape {sorted(map(str, symbols))} at {node.name}"
            )
