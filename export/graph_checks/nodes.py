"""What the checks read from an exported graph."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node


def calls(program: ExportedProgram) -> Iterator[Node]:
    """The nodes that compute something."""
    return (node for node in program.graph.nodes if node.op == "call_function")


def tensors(node: Node) -> list[Tensor]:
    """The tensors, without their values, that a node stands for: none, one, or a tuple's."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [item for item in values if isinstance(item, Tensor)]


def argument_tensor(argument: object) -> Tensor:
    """The one tensor, without its values, that an argument of a node stands for."""
    assert isinstance(argument, Node)
    (tensor,) = tensors(argument)
    return tensor


def operator_name(node: Node) -> str | None:
    """`namespace::name` without the overload, and in-place or not; None for a Python function."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    name = target._schema.name
    return name if name.endswith("__") else name.removesuffix("_")


def used_weights(program: ExportedProgram) -> dict[str, Node]:
    """The parameters and buffers that the method reads or writes, by name."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    inputs = (node for node in program.graph.nodes if node.op == "placeholder" and node.users)
    return {names[node.name]: node for node in inputs if node.name in names}
