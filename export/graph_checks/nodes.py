"""What the checks read from the nodes of an exported graph."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node


def calls(program: ExportedProgram) -> Iterator[Node]:
    """Return the nodes that compute something; a loop is one of them."""
    return (node for node in program.graph.nodes if node.op == "call_function")


def every_call(program: ExportedProgram) -> Iterator[Node]:
    """Return the nodes that compute something, also in the bodies of loops."""
    for module in program.graph_module.modules():
        nodes = module.graph.nodes if isinstance(module, GraphModule) else ()
        yield from (node for node in nodes if node.op == "call_function")


def tensors(node: Node) -> list[Tensor]:
    """Return the fake tensors of a node's result: none, one, or those of a tuple."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [item for item in values if isinstance(item, Tensor)]


def argument_tensor(argument: object) -> Tensor:
    """Return the one fake tensor of a node's argument."""
    assert isinstance(argument, Node)
    (tensor,) = tensors(argument)
    return tensor


def operator_name(node: Node) -> str | None:
    """Return `namespace::name` without overload and in-place suffix; None for Python functions."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    name = target._schema.name
    return name if name.endswith("__") else name.removesuffix("_")


def used_weights(program: ExportedProgram) -> dict[str, Node]:
    """Return the nodes of the parameters and buffers that the method reads or writes, by name."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    inputs = (node for node in program.graph.nodes if node.op == "placeholder" and node.users)
    return {names[node.name]: node for node in inputs if node.name in names}
