"""The contract of the exported graphs, checked before anything is lowered."""

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE, METHODS, PREFILL, TARGET_VERIFY
from eagle_aot.errors import ExportError
from eagle_aot.export.verify_window import MethodLengths

FORBIDDEN = {
    torch.ops.aten.split.Tensor: "split",
    torch.ops.aten.chunk.default: "chunk",
    torch.ops.aten.split_with_sizes.default: "split_with_sizes",
}
"""Operators without a kernel in some backend: halves are taken by slicing instead."""


def check_graphs(programs: Mapping[str, ExportedProgram], lengths: MethodLengths) -> None:
    """Raise ExportError naming the method and the clause that is broken."""
    if tuple(programs) != METHODS:
        raise ExportError(f"methods {list(programs)}, expected exactly {list(METHODS)}")
    ranges = {
        PREFILL: (lengths.min_prefill, lengths.max_prefill),
        TARGET_VERIFY: (1, lengths.max_verify_window),
        DRAFT_DECODE: (1, lengths.max_draft),
    }
    for name, program in programs.items():
        check_range(name, program, ranges[name])
        check_operators(name, program)
        check_mutated_buffers(name, program)
    if mutated_buffers(programs[PREFILL]) != mutated_buffers(programs[TARGET_VERIFY]):
        raise ExportError("prefill and target_verify write different caches")


def check_range(name: str, program: ExportedProgram, expected: tuple[int, int]) -> None:
    """The method's one dynamic length must span exactly what is published."""
    found = [(int(c.lower), int(c.upper)) for c in program.range_constraints.values()]
    if found != [expected]:
        raise ExportError(f"{name}: dynamic lengths {found}, expected {[expected]}")


def check_operators(name: str, program: ExportedProgram) -> None:
    """No operator that a backend cannot lower."""
    for node in program.graph.nodes:
        if node.target in FORBIDDEN:
            raise ExportError(f"{name}: operator {FORBIDDEN[node.target]} at {node.name}")


def check_mutated_buffers(name: str, program: ExportedProgram) -> None:
    """A method may write its caches and nothing else; all it has, it writes."""
    owner = "draft." if name == DRAFT_DECODE else "target."
    caches = {b for b in program.graph_signature.buffers if ".kv_cache." in b}
    caches = {b for b in caches if b.startswith(owner)}
    if mutated_buffers(program) != caches or not caches:
        wrong = sorted(mutated_buffers(program) ^ caches)
        raise ExportError(f"{name}: writes other buffers than its caches: {wrong[:3]}")


def mutated_buffers(program: ExportedProgram) -> set[str]:
    """Names of the buffers a method writes in place."""
    buffers = program.graph_signature.inputs_to_buffers
    return {
        buffers.get(node.args[0].name, node.args[0].name)
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    }
