"""CUDA's driver as far as it keeps the edges of a graph; no GPU need be there."""

from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

PLAIN, PROGRAMMATIC = (0, 0), (1, 1)
"""Port and type of an edge, as `cuda.h` numbers them."""


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


INVALID = Result.CUDA_ERROR_INVALID_VALUE


class NodeType(IntEnum):
    CU_GRAPH_NODE_TYPE_KERNEL = 0
    CU_GRAPH_NODE_TYPE_MEMCPY = 1


class DependencyType(IntEnum):
    CU_GRAPH_DEPENDENCY_TYPE_DEFAULT = 0
    CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC = 1


@dataclass
class EdgeData:
    from_port: int = 0
    to_port: int = 0
    type: int = 0


@dataclass
class FakeDriver:
    """A graph of nodes that are numbers: `names` those of kernels, None for a copy, "" for a kernel
    that has none; those `of_library` are no functions of a module. `edges` have a port and a type;
    so many `programmatic` ones may be added."""

    names: list[str | None]
    edges: dict[tuple[int, int], tuple[int, int]]
    programmatic: int = 1000
    of_library: tuple[int, ...] = ()

    CUresult = Result
    CUgraphNodeType = NodeType
    CUgraphDependencyType = DependencyType
    CUgraphEdgeData = EdgeData
    CUgraph = int
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1

    def cuGraphGetEdges(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        """Without a count only how many there are. Their data is not to be read."""
        some = list(self.edges)[:count]
        ends = [one for one, _ in some], [other for _, other in some]
        return Result.CUDA_SUCCESS, *ends, [None] * len(some), len(self.edges)

    def cuGraphNodeGetType(self, node: int) -> tuple[Result, NodeType]:
        return Result.CUDA_SUCCESS, NodeType(self.names[node] is None)

    def cuGraphKernelNodeGetParams(self, node: int) -> tuple[Result, SimpleNamespace]:
        handles = (0, node + 1) if node in self.of_library else (node + 1, 0)
        return Result.CUDA_SUCCESS, SimpleNamespace(func=handles[0], kern=handles[1])

    def cuFuncGetName(self, function: int) -> tuple[Result, bytes | None]:
        name = self.names[function - 1] if function else None
        return (Result.CUDA_SUCCESS, name.encode()) if name else (INVALID, None)

    cuKernelGetName = cuFuncGetName

    def cuGraphRemoveDependencies(
        self, graph: int, before: list[int], behind: list[int], data: list[EdgeData], count: int
    ) -> tuple[Result]:
        edge = before[0], behind[0]
        if count != 1 or self.edges.get(edge) != self._kind(data):
            return (INVALID,)
        del self.edges[edge]
        return (Result.CUDA_SUCCESS,)

    def cuGraphAddDependencies(
        self, graph: int, before: list[int], behind: list[int], data: list[EdgeData], count: int
    ) -> tuple[Result]:
        edge, kind = (before[0], behind[0]), self._kind(data)
        if count != 1 or edge in self.edges or (kind == PROGRAMMATIC and not self.programmatic):
            return (INVALID,)
        self.programmatic -= kind == PROGRAMMATIC
        self.edges[edge] = kind
        return (Result.CUDA_SUCCESS,)

    def _kind(self, data: list[EdgeData]) -> tuple[int, int]:
        return (data[0].from_port, data[0].type) if data else PLAIN
