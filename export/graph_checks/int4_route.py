"""INT4 weights: packed, and read as they are by the kernel for few rows or the one for many.

Where a backend has folded them into dense ones before tracing, there is nothing to check.
"""

from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.buffers import DRAFT
from eagle_aot.export.graph_checks.nodes import operator_name, tensors, used_weights
from eagle_aot.export.lengths import MAX_VERIFY_WINDOW

SMALL_M = "eagle_aot::int4_small_m"
LARGE_M = "eagle_aot::int4_large_m"
CODES = ".codes"
UNPACKED = ".qdata"


def check_int4_route(name: str, program: ExportedProgram, rows: tuple[int, int]) -> None:
    """A method of up to `MAX_VERIFY_WINDOW` rows takes the small-M operator for every INT4 weight.

    One of more rows takes the large-M operator, except for a fixed few of its rows, such as a
    prompt's last one. `rows` is the method's inclusive range; one on both sides of the limit cannot
    hold INT4 weights, but for the head's own in draft_decode: a round's slots and a prompt's go
    through the small-M operator, so that their bits do not depend on how many there are. Weights
    that are not packed would be dequantised in every step.
    """
    weights = used_weights(program)
    if unpacked := sorted(weight for weight in weights if weight.endswith(UNPACKED)):
        raise ExportError(f"{name}: INT4 weight {unpacked[0]} is not packed")
    packed = {weight: node for weight, node in weights.items() if weight.endswith(CODES)}
    tiled = {weight for weight in packed if name == DRAFT_DECODE and weight.startswith(DRAFT)}
    if (others := packed.keys() - tiled) and rows[0] <= MAX_VERIFY_WINDOW < rows[1]:
        raise ExportError(
            f"{name}: INT4 weight {min(others)} for {rows[0]} to {rows[1]} rows, on both sides "
            f"of the dispatch at {MAX_VERIFY_WINDOW}"
        )
    for weight, node in packed.items():
        few = weight in tiled or rows[1] <= MAX_VERIFY_WINDOW
        wanted = SMALL_M if few else LARGE_M
        for user in node.users:
            if not _is_right(user, node, wanted):
                raise ExportError(
                    f"{name}: INT4 weight {weight} must be read by {wanted} for {rows[0]} to "
                    f"{rows[1]} rows, but {user.target} takes it at {user.name}"
                )


def _is_right(user: Node, weight: Node, wanted: str) -> bool:
    operator = operator_name(user)
    if operator not in (SMALL_M, LARGE_M) or user.args[1] is not weight:
        return False
    (output,) = tensors(user)
    return operator == wanted or (operator == SMALL_M and isinstance(output.shape[-2], int))
