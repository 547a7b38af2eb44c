"""What a method takes and returns: rows of a step or of a prompt in, logits and features out."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.export import ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE, PREFILL, TARGET_VERIFY
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import tensors
from eagle_aot.targets.step import TAIL

Form = tuple[str, tuple[object, ...]]
"""Dtype and sizes. Of the sizes BATCH and ROWS vary, and WIDTH is any that does not."""

BATCH, ROWS, WIDTH = "batch", "rows", "width"
INT64, FLOAT32, FEATURES = "int64", "float32", "features"

STEP: dict[str, Form] = {
    "tokens": (INT64, (BATCH, ROWS)),
    "positions": (INT64, (BATCH, ROWS)),
    "sequences": (INT64, (BATCH,)),
    "tail": (INT64, (BATCH, ROWS, TAIL)),
}
ALL_ROWS = (FLOAT32, (BATCH, ROWS, WIDTH)), (FEATURES, (BATCH, ROWS, WIDTH))
LAST_ROW = (FLOAT32, (1, 1, WIDTH)), (FEATURES, (1, ROWS, WIDTH))

INPUTS: dict[str, dict[str, Form]] = {
    PREFILL: {
        "tokens": (INT64, (1, ROWS)),
        "input_pos": (INT64, (ROWS,)),
        "sequence": (INT64, (1,)),
    },
    TARGET_VERIFY: STEP | {"moves": (INT64, (BATCH, TAIL))},
    DRAFT_DECODE: STEP | {"features": (FEATURES, (BATCH, ROWS, WIDTH))},
}
OUTPUTS: dict[str, tuple[Form, Form]] = {
    PREFILL: LAST_ROW,
    TARGET_VERIFY: ALL_ROWS,
    DRAFT_DECODE: ALL_ROWS,
}
"""Logits, never ids, which the runner chooses; and features."""


def check_signature(name: str, program: ExportedProgram, max_batch_size: int) -> None:
    """The method takes what a runner gives it, and returns logits in float32 and features."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [str(one) for one in signature.user_inputs]
    if inputs != list(INPUTS[name]):
        raise ExportError(f"{name}: takes {inputs}, expected {list(INPUTS[name])}")
    outputs = [str(one) for one in signature.user_outputs]
    if len(outputs) != len(OUTPUTS[name]):
        raise ExportError(f"{name}: returns {len(outputs)} tensors, expected logits and features")
    forms = [*INPUTS[name].items(), *zip(("logits", "features"), OUTPUTS[name], strict=True)]
    (rows,) = (tensor.shape[-1] for tensor in tensors(nodes["tokens"]))
    for node, (role, form) in zip([*inputs, *outputs], forms, strict=True):
        (tensor,) = tensors(nodes[node])
        if not _fits(tensor, form, str(rows), max_batch_size):
            raise ExportError(
                f"{name}: {role} is {str(tensor.dtype).removeprefix('torch.')} "
                f"{[str(size) for size in tensor.shape]}, expected {form[0]} {list(form[1])}"
            )


def check_features(programs: Mapping[str, ExportedProgram]) -> None:
    """What one method returns of a row is what another takes: of one dtype and width."""
    found = [
        (name, str(tensor.dtype).removeprefix("torch."), int(tensor.shape[-1]))
        for name, program in programs.items()
        for node in program.graph.nodes
        if node.name in _features(name, program)
        for tensor in tensors(node)
    ]
    if len({one[1:] for one in found}) > 1:
        raise ExportError(f"features differ among methods: {found}")


def _features(name: str, program: ExportedProgram) -> set[str]:
    signature = program.graph_signature
    taken = zip(INPUTS[name], map(str, signature.user_inputs), strict=True)
    return {node for role, node in taken if role == "features"} | {str(signature.user_outputs[1])}


def _fits(tensor: Tensor, form: Form, rows: str, max_batch_size: int) -> bool:
    kind, sizes = form
    known = tensor.is_floating_point() if kind == FEATURES else tensor.dtype == getattr(torch, kind)
    return (
        known
        and tensor.ndim == len(sizes)
        and all(
            _is(size, wanted, rows, max_batch_size)
            for size, wanted in zip(tensor.shape, sizes, strict=True)
        )
    )


def _is(size: int | torch.SymInt, wanted: object, rows: str, max_batch_size: int) -> bool:
    """A length that varies has a name instead of a number."""
    if wanted == ROWS:
        return str(size) == rows
    if wanted == BATCH and max_batch_size > 1:
        return not isinstance(size, int)
    return isinstance(size, int) and (wanted == WIDTH or size == (1 if wanted == BATCH else wanted))
