"""Caches: read by the project's operators where the export is told to."""

from collections.abc import Collection, Iterator

from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.nodes import operator_name, used_weights
from eagle_aot.triton_kernels.sdpa_splitk.tiling import HEAD_DIMS, MAX_TILE, TILE_ROWS

SPLITK, PROMPT = "eagle_aot::sdpa_splitk", "eagle_aot::sdpa_prompt"
STORE = "eagle_aot::norm_rope_store"
WRITES, TAKES = "aten::index_copy", "aten::index_select"
VIEWS = ("aten::unflatten", "aten::view")


def check_attention_route(
    name: str, program: ExportedProgram, caches: Collection[str], *, few_rows: bool
) -> None:
    """The method reads with one operator every cache that it uses, and with nothing else.

    With `sdpa_splitk` if it is of `few_rows`, or `sdpa_prompt`; but for what is moved within it.
    """
    wanted = SPLITK if few_rows else PROMPT
    for weight, node in used_weights(program).items():
        if weight not in caches:
            continue
        readers = set(_readers(node))
        if readers != {wanted}:
            found = min(readers - {wanted}, default="nothing")
            raise ExportError(
                f"{name}: cache {weight} is read by {found}, not by "
                f"{wanted.removeprefix('eagle_aot::')}, which serves "
                f"bfloat16 or float16, heads of {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}, a "
                f"power of two, and {MAX_TILE // TILE_ROWS} elements of queries to a key head "
                "(--attention stock takes any)"
            )


def _readers(cache: Node) -> Iterator[str]:
    """Operators that take the cache: it, a view of it, or what a write into it returns."""
    for user in cache.users:
        name = operator_name(user)
        if (name == WRITES and user.args[0] is cache) or name in VIEWS:
            yield from _readers(user)
        elif name != STORE and not _is_moved_within(user, cache):
            yield str(name or user.target)


def _is_moved_within(user: Node, cache: Node) -> bool:
    """Whether the node takes entries of the cache that are only written back into it."""
    return operator_name(user) == TAKES and all(
        operator_name(write) == WRITES and write.args[0] is cache and write.args[3] is user
        for write in user.users
    )
