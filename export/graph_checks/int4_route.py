"""INT4 weights: read as they are by few rows, dequantised for many.

Where a backend has folded them into dense ones before tracing, there is nothing to check.
"""

from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.errors import ExportError
from eagle_aot.export.graph_checks.nodes import operator_name, tensors, used_weights
from eagle_aot.export.verify_window import MAX_VERIFY_WINDOW

SMALL_M = "eagle_aot::int4_small_m"
QDATA = ".qdata"


def check_int4_route(name: str, program: ExportedProgram, rows: tuple[int, int]) -> None:
    """A method of up to `MAX_VERIFY_WINDOW` rows takes the small-M operator for every INT4 weight.

    One of more rows dequantises, except for a fixed few of its rows, such as a prompt's last one.
    `rows` is the method's inclusive range; one on both sides of the limit cannot hold INT4 weights.
    """
    weights = {w: node for w, node in used_weights(program).items() if w.endswith(QDATA)}
    few = rows[1] <= MAX_VERIFY_WINDOW
    if weights and not few and rows[0] <= MAX_VERIFY_WINDOW:
        raise ExportError(
            f"{name}: INT4 weight {min(weights)} for {rows[0]} to {rows[1]} rows, on both sides "
            f"of the dispatch at {MAX_VERIFY_WINDOW}"
        )
    for weight, node in weights.items():
        for user in node.users:
            if not _is_right(user, node, few):
                wanted = "read by int4_small_m" if few else "dequantised"
                raise ExportError(
                    f"{name}: INT4 weight {weight} must be {wanted} for {rows[0]} to {rows[1]} "
                    f"rows, but {user.target} takes it at {user.name}"
                )


def _is_right(user: Node, weight: Node, few: bool) -> bool:
    if operator_name(user) != SMALL_M or user.args[1] is not weight:
        return not few
    (output,) = tensors(user)
    return few or isinstance(output.shape[-2], int)
