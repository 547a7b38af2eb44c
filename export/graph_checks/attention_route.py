"""Caches: read by the operator for few rows where the export is told to."""

from collections.abc import Iterator

from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.artifact import CACHE_MARK
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.allowed import VIEWS
from eagle_aot.export.graph_checks.buffers import written_tensor
from eagle_aot.export.graph_checks.nodes import operator_name, used_weights
from eagle_aot.triton_kernels.sdpa_splitk.tiling import HEAD_DIMS, MAX_TILE, TILE_ROWS

SPLITK = "eagle_aot::sdpa_splitk"
WRITES = "aten::index_copy"
GATHERS = "aten::index_select"


def check_attention_route(name: str, program: ExportedProgram) -> None:
    """The method reads every cache with `sdpa_splitk`, and with nothing else."""
    for weight, node in used_weights(program).items():
        if CACHE_MARK not in weight:
            continue
        readers = set(_readers(node))
        if readers != {SPLITK}:
            found = min(readers - {SPLITK}, default="nothing")
            raise ExportError(
                f"{name}: cache {weight} is read by {found}, not by sdpa_splitk, which serves "
                f"bfloat16 or float16, heads of {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}, a "
                f"power of two, and {MAX_TILE // TILE_ROWS} elements of queries to a key head "
                "(--attention stock takes any)"
            )


def _readers(cache: Node) -> Iterator[str]:
    """Operators that take the cache, a view of it, or what a write into it returns, which is it.

    Rows that are gathered only to be written back into the same cache are moved, not read.
    """
    for user in cache.users:
        name = operator_name(user)
        if name in VIEWS or (name == WRITES and user.args[0] is cache):
            yield from _readers(user)
        elif name != GATHERS or not _moves(user):
            yield str(name or user.target)


def _moves(gathered: Node) -> bool:
    """Whether what was gathered from a cache goes nowhere but into it."""
    source = gathered.args[0]
    assert isinstance(source, Node)
    return all(
        operator_name(user) == WRITES
        and user.args[3] is gathered
        and user.args[0] in (source, written_tensor(source))
        for user in gathered.users
    )
