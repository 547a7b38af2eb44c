"""INT4 weights: packed, and read as they are by the kernel for few rows or the one for many.

Where a backend has folded them into dense ones before tracing, there is nothing to check.
"""

from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import operator_name, tensors, used_weights

SMALL_M = "eagle_aot::int4_small_m"
LARGE_M = "eagle_aot::int4_large_m"
CODES = ".codes"
UNPACKED = ".qdata"


def check_int4_route(name: str, program: ExportedProgram, *, few_rows: bool) -> None:
    """A method of `few_rows` takes the small-M operator for every INT4 weight.

    One of many rows takes the large-M operator, except for a fixed few of its rows, such as a
    prompt's last one. Weights that are not packed would be dequantised in every step.
    """
    weights = used_weights(program)
    if unpacked := sorted(weight for weight in weights if weight.endswith(UNPACKED)):
        raise ExportError(f"{name}: INT4 weight {unpacked[0]} is not packed")
    wanted = SMALL_M if few_rows else LARGE_M
    rows = "few" if few_rows else "many"
    for weight, node in weights.items():
        for user in node.users if weight.endswith(CODES) else ():
            if not _is_right(user, node, wanted):
                raise ExportError(
                    f"{name}: INT4 weight {weight} must be read by {wanted} for {rows} rows, but "
                    f"{user.target} takes it at {user.name}"
                )


def _is_right(user: Node, weight: Node, wanted: str) -> bool:
    operator = operator_name(user)
    if operator not in (SMALL_M, LARGE_M) or user.args[1] is not weight:
        return False
    (output,) = tensors(user)
    return operator == wanted or (operator == SMALL_M and isinstance(output.shape[-2], int))
