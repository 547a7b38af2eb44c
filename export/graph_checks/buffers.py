"""Which buffers a method may write, and what the methods have in common."""

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
    """A method writes its `caches`, all of them, and nothing else."""
    if wrong := sorted(mutated_buffers(program) ^ set(caches)):
        raise ExportError(f"{name}: writes other buffers than its caches: {wrong[:3]}")


def mutated_buffers(program: ExportedProgram) -> set[str]:
    """Names of the buffers a method writes in place."""
    buffers = program.graph_signature.inputs_to_buffers
    written = (_first(node) for node in calls(program) if _is_write(node))
    return {buffers.get(node.name, node.name) for node in written}


def _is_write(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _first(write: Node) -> Node:
    """What a write is into; what it returns, into which the next may be, is the same memory."""
    into = write.args[0]
    assert isinstance(into, Node)
    return _first(into) if _is_write(into) else into


def check_shared_tensors(programs: Mapping[str, ExportedProgram]) -> None:
    """One name is one tensor in all methods, and prefill and target_verify are of one target.

    The runtime joins weights and caches of the methods by name: one that only one of the two knows
    would be a second copy, or a cache that the other never sees.
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
            found = f"{kinds[weight]} and {other_kinds[weight]}"
            raise ExportError(f"{name} and {other}: {weight} is {found}")
