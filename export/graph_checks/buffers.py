"""Which buffers a method may write, and which tensors the methods share."""

from collections.abc import Collection, Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.artifact import PREFILL, TARGET_VERIFY
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import calls, tensors, used_weights

TARGET = "target."

Kind = tuple[torch.dtype, tuple[int, ...]]


def check_mutated_buffers(name: str, program: ExportedProgram, caches: Collection[str]) -> None:
    """Raise ExportError unless a method writes all of its `caches`, and nothing else."""
    if wrong := sorted(mutated_buffers(program) ^ set(caches)):
        raise ExportError(f"{name}: writes other buffers than its caches: {wrong[:3]}")


def mutated_buffers(program: ExportedProgram) -> set[str]:
    """Return the names of the buffers that a method writes in place."""
    buffers = program.graph_signature.inputs_to_buffers
    written = (_memory(into) for node in calls(program) for into in written_by(node))
    return {buffers.get(node.name, node.name) for node in written}


def written_by(node: Node) -> list[Node]:
    """Return the arguments of a call that it writes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    schema = node.target._schema.arguments
    pairs = zip(schema, node.args, strict=False)
    written = (value for arg, value in pairs if arg.alias_info and arg.alias_info.is_write)
    return [value for value in written if isinstance(value, Node)]


def _memory(node: Node) -> Node:
    """Return the node whose memory this is: in-place operators return what they write."""
    written = written_by(node)
    return _memory(written[0]) if written else node


def check_shared_tensors(programs: Mapping[str, ExportedProgram]) -> None:
    """Raise ExportError unless one name is one tensor in all methods.

    `prefill` and `target_verify` must also use the same tensors of the target. The runtime joins
    weights and caches of the methods by name: one that only one of the two uses would be a second
    copy, or a cache that the other never sees.
    """
    if mutated_buffers(programs[PREFILL]) != mutated_buffers(programs[TARGET_VERIFY]):
        raise ExportError("prefill and target_verify write different caches")
    kinds = {name: _kinds(program) for name, program in programs.items()}
    prefill, verify = (
        {weight for weight in kinds[name] if weight.startswith(TARGET)}
        for name in (PREFILL, TARGET_VERIFY)
    )
    if prefill != verify:
        raise ExportError(
            f"prefill and target_verify use different tensors: {sorted(prefill ^ verify)[:3]}"
        )
    for name in programs:
        _check_agreement(TARGET_VERIFY, kinds[TARGET_VERIFY], name, kinds[name])


def _kinds(program: ExportedProgram) -> dict[str, Kind]:
    weights = used_weights(program)
    return {
        name: (tensor.dtype, tuple(tensor.shape))
        for name, node in weights.items()
        for tensor in tensors(node)
    }


def _check_agreement(
    name: str, kinds: Mapping[str, Kind], other: str, other_kinds: Mapping[str, Kind]
) -> None:
    for weight in kinds.keys() & other_kinds.keys():
        if kinds[weight] != other_kinds[weight]:
            both = f"{kinds[weight]} and {other_kinds[weight]}"
            raise ExportError(f"{name} and {other}: {weight} is {both}")
