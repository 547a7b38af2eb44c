"""The contract of the exported graphs, checked before anything is lowered."""

from collections.abc import Collection, Mapping

from torch.export import ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE, METHODS, PREFILL, TARGET_VERIFY
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.attention_route import check_attention_route
from eagle_aot.export.graph_checks.buffers import (
    check_mutated_buffers,
    check_shared_tensors,
    mutated_buffers,
    written_caches,
)
from eagle_aot.export.graph_checks.data_dependence import check_data_dependence
from eagle_aot.export.graph_checks.int4_route import check_int4_route
from eagle_aot.export.graph_checks.operators import check_matmuls, check_operators
from eagle_aot.export.graph_checks.signature import check_features, check_signature
from eagle_aot.export.graph_checks.weight_sized import check_weight_sized
from eagle_aot.export.lengths import MethodLengths

__all__ = ["check_graphs", "mutated_buffers", "written_caches"]


def check_graphs(
    programs: Mapping[str, ExportedProgram],
    lengths: MethodLengths,
    splits_keys: Collection[str] = (),
) -> None:
    """Raise ExportError naming the method and the clause that is broken.

    Methods of `splits_keys` must attend through the operator for few rows.
    """
    if tuple(programs) != METHODS:
        raise ExportError(f"methods {list(programs)}, expected exactly {list(METHODS)}")
    ranges = {
        PREFILL: (lengths.min_prefill, lengths.max_prefill),
        TARGET_VERIFY: (1, lengths.max_rows),
        DRAFT_DECODE: (1, lengths.max_draft),
    }
    for name, program in programs.items():
        check_data_dependence(name, program)
        batch = 1 if name == PREFILL else lengths.max_batch_size
        check_ranges(name, program, ranges[name], batch)
        check_signature(name, program, batch)
        check_operators(name, program)
        check_matmuls(name, program)
        check_mutated_buffers(name, program)
        check_int4_route(name, program, few_rows=name != PREFILL)
        if name != PREFILL:  # a whole prompt may pay for what a round may not
            check_weight_sized(name, program)
    for name in splits_keys:
        check_attention_route(name, programs[name])
    check_features(programs)
    check_shared_tensors(programs)


def check_ranges(
    name: str, program: ExportedProgram, rows: tuple[int, int], max_batch_size: int
) -> None:
    """Rows of a sequence, and sequences where there may be several, span what is published."""
    constraints = program.range_constraints.values()
    found = {(int(range_.lower), int(range_.upper)) for range_ in constraints}
    expected = {rows} | ({(1, max_batch_size)} if max_batch_size > 1 else set())
    if found != expected:
        raise ExportError(f"{name}: dynamic lengths {sorted(found)}, expected {sorted(expected)}")
