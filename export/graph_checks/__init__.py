"""The contract of the exported graphs, checked before anything is lowered."""

from collections.abc import Mapping

from torch.export import ExportedProgram

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.buffers import (
    check_mutated_buffers,
    check_shared_tensors,
    mutated_buffers,
)
from eagle_aot.export.graph_checks.operators import (
    check_data_dependence,
    check_matmuls,
    check_operators,
)
from eagle_aot.export.graph_checks.routes import check_attention_route, check_int4_route
from eagle_aot.export.graph_checks.signature import check_features, check_signature
from eagle_aot.export.graph_checks.weight_sized import check_weight_sized
from eagle_aot.export.method_spec import MethodSpec

__all__ = ["check_graphs", "mutated_buffers"]


def check_graphs(
    programs: Mapping[str, ExportedProgram], methods: Mapping[str, MethodSpec], max_batch_size: int
) -> None:
    """Raise ExportError, naming the method, unless all programs keep the graph contract.

    `methods` are their specifications; caches hold `max_batch_size` sequences.
    """
    if tuple(programs) != tuple(methods):
        raise ExportError(f"methods {list(programs)}, expected exactly {list(methods)}")
    caches = frozenset().union(*(method.writes for method in methods.values()))
    for name, program in programs.items():
        method = methods[name]
        batch = max_batch_size * method.lines if method.takes_batches else 1
        check_data_dependence(name, program)
        if method.varies:
            check_ranges(name, program, (method.min_rows, method.max_rows), batch)
        check_signature(name, program, method, batch)
        check_operators(name, program)
        check_matmuls(name, program)
        check_mutated_buffers(name, program, method.writes)
        check_int4_route(name, program, few_rows=method.few_rows)
        if method.few_rows:  # a whole prompt may pay for what a round may not
            check_weight_sized(name, program)
    for name, method in methods.items():
        if method.use_splitk:
            check_attention_route(name, programs[name], caches, few_rows=method.few_rows)
    check_features(programs, methods)
    check_shared_tensors(programs)


def check_ranges(
    name: str, program: ExportedProgram, rows: tuple[int, int], max_batch_size: int
) -> None:
    """Raise ExportError unless the dynamic dimensions span the rows and sequences of the method."""
    constraints = program.range_constraints.values()
    lengths = {(int(range_.lower), int(range_.upper)) for range_ in constraints}
    expected = {rows} | ({(1, max_batch_size)} if max_batch_size > 1 else set())
    if lengths != expected:
        raise ExportError(f"{name}: dynamic lengths {sorted(lengths)}, expected {sorted(expected)}")
