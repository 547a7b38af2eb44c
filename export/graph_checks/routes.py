"""INT4 weights and caches are read by the project's operators, and by nothing else."""

from collections.abc import Collection, Iterator

from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import operator_name, tensors, used_weights
from eagle_aot.triton_kernels.sdpa_splitk.tiling import HEAD_DIMS, MAX_TILE, TILE_ROWS

SMALL_M, LARGE_M = "eagle_aot::int4_small_m", "eagle_aot::int4_large_m"
FEW_EXPERTS, MANY_EXPERTS = "eagle_aot::int4_experts_few", "eagle_aot::int4_experts_many"
READERS = {SMALL_M: 1, LARGE_M: 1, FEW_EXPERTS: 3, MANY_EXPERTS: 5}
"""Operators that read INT4 weights, and which of their arguments the weight is."""
CODES, UNPACKED = ".codes", ".qdata"

SPLITK, PROMPT = "eagle_aot::sdpa_splitk", "eagle_aot::sdpa_prompt"
STORE = "eagle_aot::norm_rope_store"
ATTENDED = ".k", ".v"
"""What names of the buffers of keys and values end in; those of recurrent states do not."""
WRITES = {"aten::index_copy": 3, "aten::index_put": 2}
"""Operators that write into a cache, and which of their arguments they write."""
TAKES = "aten::index_select"
VIEWS = ("aten::unflatten", "aten::view")


def check_int4_route(name: str, program: ExportedProgram, *, few_rows: bool) -> None:
    """Raise ExportError unless the right kernel reads every INT4 weight, which is packed.

    In a method of `few_rows` that is the small-M operator. In one of many rows it is the large-M
    operator, except for a fixed few of its rows, such as a prompt's last one; those of experts have
    an operator for each. Weights that are not
    packed would be dequantised in every step. Where a backend has made them dense before tracing,
    there is nothing to check.
    """
    weights = used_weights(program)
    if unpacked := sorted(weight for weight in weights if weight.endswith(UNPACKED)):
        raise ExportError(f"{name}: INT4 weight {unpacked[0]} is not packed")
    expected = (SMALL_M, FEW_EXPERTS) if few_rows else (LARGE_M, MANY_EXPERTS)
    rows = "few" if few_rows else "many"
    for weight, node in weights.items():
        for user in node.users if weight.endswith(CODES) else ():
            if not _reads_int4(user, node, expected):
                raise ExportError(
                    f"{name}: INT4 weight {weight} must be read by {expected[0]} for {rows} rows, "
                    f"but {user.target} takes it at {user.name}"
                )


def _reads_int4(user: Node, weight: Node, expected: Collection[str]) -> bool:
    operator = operator_name(user)
    if operator not in READERS or user.args[READERS[operator]] is not weight:
        return False
    (output,) = tensors(user)
    return operator in expected or (operator == SMALL_M and isinstance(output.shape[-2], int))


def check_attention_route(
    name: str, program: ExportedProgram, caches: Collection[str], *, few_rows: bool
) -> None:
    """Raise ExportError unless one operator reads all keys and values that the method uses.

    That is `sdpa_splitk` in a method of `few_rows`, and `sdpa_prompt` in others. Entries that are
    moved within a cache are no reads.
    """
    expected = SPLITK if few_rows else PROMPT
    for weight, node in used_weights(program).items():
        if weight not in caches or not weight.endswith(ATTENDED):
            continue
        readers = set(_readers(node))
        if readers != {expected}:
            reader = min(readers - {expected}, default="nothing")
            raise ExportError(
                f"{name}: cache {weight} is read by {reader}, not by "
                f"{expected.removeprefix('eagle_aot::')}, which serves "
                f"bfloat16 or float16, heads of {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}, a "
                f"power of two, and {MAX_TILE // TILE_ROWS} elements of queries to a key head "
                '(attention="stock" of ExportSpec takes any)'
            )


def _readers(cache: Node) -> Iterator[str]:
    """Yield the operators that take the cache, a view of it, or what a write into it returns."""
    for user in cache.users:
        name = operator_name(user)
        is_moved = name == TAKES and all(_written(write, cache) is user for write in user.users)
        if name in VIEWS or _written(user, cache) is not None:
            yield from _readers(user)
        elif name != STORE and not is_moved:
            yield str(name or user.target)


def _written(user: Node, cache: Node) -> object:
    """Return what the node writes into the cache, None if it does not write into it."""
    argument = WRITES.get(operator_name(user) or "")
    return None if argument is None or user.args[0] is not cache else user.args[argument]
