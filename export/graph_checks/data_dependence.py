"""No method's course or shapes depend on values: a captured CUDA graph could not follow."""

from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import calls, operator_name

GUARDS = frozenset(
    f"aten::{name}"
    for name in (
        "_assert_async",
        "_assert_scalar",
        "_local_scalar_dense",
        "item",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    )
)


def check_data_dependence(name: str, program: ExportedProgram) -> None:
    """No value is read on the host, none is asserted about, and no shape depends on one."""
    for node in calls(program):
        if operator_name(node) in GUARDS:
            raise ExportError(f"{name}: data-dependent guard {node.target} at {node.name}")
        if symbols := free_unbacked_symbols(node.meta.get("val")):
            raise ExportError(
                f"{name}: data-dependent shape {sorted(map(str, symbols))} at {node.name}"
            )
