"""What a method takes and returns: rows of a step or of a prompt in, logits and features out."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import tensors
from eagle_aot.export.method_spec import BATCH, FEATURES, ROWS, WIDTH, Form, MethodSpec


def check_signature(
    name: str, program: ExportedProgram, method: MethodSpec, max_batch_size: int
) -> None:
    """Raise ExportError unless the method has the inputs and outputs of its specification."""
    signature, nodes = program.graph_signature, _nodes(program)
    inputs = [str(name) for name in signature.user_inputs]
    if inputs != list(method.inputs):
        raise ExportError(f"{name}: takes {inputs}, expected {list(method.inputs)}")
    outputs = [str(name) for name in signature.user_outputs]
    if len(outputs) != len(method.outputs):
        expected = " and ".join(method.outputs)
        raise ExportError(f"{name}: returns {len(outputs)} tensors, expected {expected}")
    rows = _rows(nodes, method)
    forms = [*method.forms.items(), *method.outputs.items()]
    for node, (role, form) in zip([*inputs, *outputs], forms, strict=True):
        (tensor,) = tensors(nodes[node])
        if not _fits(tensor, form, rows, max_batch_size):
            raise ExportError(
                f"{name}: {role} is {str(tensor.dtype).removeprefix('torch.')} "
                f"{[str(size) for size in tensor.shape]}, expected {form[0]} {list(form[1])}"
            )


def check_features(
    programs: Mapping[str, ExportedProgram], methods: Mapping[str, MethodSpec]
) -> None:
    """Raise ExportError unless all methods return and take features of one dtype and width."""
    features = [
        (name, str(tensor.dtype).removeprefix("torch."), int(tensor.shape[-1]))
        for name, program in programs.items()
        for tensor in _features(program, methods[name])
    ]
    if len({(dtype, width) for _, dtype, width in features}) > 1:
        raise ExportError(f"features differ among methods: {features}")


def _features(program: ExportedProgram, method: MethodSpec) -> Iterator[Tensor]:
    signature, nodes = program.graph_signature, _nodes(program)
    inputs = zip(method.inputs, signature.user_inputs, strict=True)
    outputs = zip(method.outputs, signature.user_outputs, strict=True)
    for role, node in (*inputs, *outputs):
        if role == FEATURES:
            yield from tensors(nodes[str(node)])


def _rows(nodes: Mapping[str, Node], method: MethodSpec) -> str:
    """Return the graph's symbol for the number of rows; empty where that does not vary."""
    if not method.varies:
        return ""
    name, at = next(
        (name, at)
        for name, (_, varies) in method.inputs.items()
        for at, counts in varies.items()
        if counts == ROWS
    )
    (tensor,) = tensors(nodes[name])
    return str(tensor.shape[at])


def _nodes(program: ExportedProgram) -> dict[str, Node]:
    return {node.name: node for node in program.graph.nodes}


def _fits(tensor: Tensor, form: Form, rows: str, max_batch_size: int) -> bool:
    kind, sizes = form
    is_float = tensor.is_floating_point()
    return (
        (is_float if kind == FEATURES else tensor.dtype == getattr(torch, kind))
        and tensor.ndim == len(sizes)
        and all(
            _is_size(size, expected, rows, max_batch_size)
            for size, expected in zip(tensor.shape, sizes, strict=True)
        )
    )


def _is_size(size: int | torch.SymInt, expected: object, rows: str, max_batch_size: int) -> bool:
    """Return whether a size is the expected one; one that varies is compared by its symbol."""
    if expected == ROWS:
        return str(size) == rows
    if expected == BATCH and max_batch_size > 1:
        return not isinstance(size, int)
    if expected == BATCH:
        expected = 1
    return isinstance(size, int) and expected in (WIDTH, size)
