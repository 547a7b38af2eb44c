"""No step of few rows writes a tensor as large as a weight.

A weight that is dequantised, cast or transposed, or a copied cache, costs as much to write as the
whole step may take.
"""

from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.artifact.manifest import STATE
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import calls, operator_name, tensors, used_weights

DEQUANTISED = (
    "quantized_decomposed::dequantize_per_channel",
    "quantized_decomposed::dequantize_per_channel_group",
)
LARGE = 1 << 20
"""A tensor of so many elements is as large as a weight, in any model."""


def check_weight_sized(name: str, program: ExportedProgram) -> None:
    """Raise ExportError for a result as large as a weight, or of a weight's shape.

    Results that depend on the number of rows are activations, such as logits and scores. Views and
    buffers written in place are no new results. `arange` is computed where it is used, and so is a
    weight in fewer bits, which XNNPACK's linears read as it is. In a loop over rows each row reads
    the weights of its experts, which is no more than it needs.
    """
    shapes = _weight_shapes(program)
    for node in calls(program):
        if operator_name(node) == "aten::arange" or _is_fused(node):
            continue
        for tensor in tensors(node):
            is_static = all(isinstance(size, int) for size in tensor.shape)
            if not is_static or _is_in_place(tensor, node):
                continue
            if tensor.numel() >= LARGE or _form(tensor.shape) in shapes:
                raise ExportError(
                    f"{name}: {node.target} at {node.name} makes {list(tensor.shape)}, the size "
                    "of a weight, in every step"
                )


def _weight_shapes(program: ExportedProgram) -> set[tuple[int, ...]]:
    """Return the sizes of the weights and caches that are matrices, without those of recurrent
    states, which every step reads and writes as a whole."""
    weights = used_weights(program).items()
    nodes = [node for name, node in weights if not name.endswith(STATE)]
    shapes = {_form(tensor.shape) for node in nodes for tensor in tensors(node)}
    return {shape for shape in shapes if len(shape) > 1}


def _form(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a shape in ascending order, without those of 1."""
    return tuple(sorted(size for size in shape if size != 1))


def _is_fused(node: Node) -> bool:
    """Return whether a node is a dequantised weight that linears alone read."""
    return operator_name(node) in DEQUANTISED and all(
        operator_name(user) == "aten::linear" and user.args[1] is node for user in node.users
    )


def _is_in_place(tensor: Tensor, node: Node) -> bool:
    """Return whether the result lies in the memory of an input."""
    storage = tensor.untyped_storage()._cdata
    inputs = (x for source in node.all_input_nodes for x in tensors(source))
    return any(x.untyped_storage()._cdata == storage for x in inputs)
