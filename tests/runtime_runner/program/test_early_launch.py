"""Which edges of a captured graph become programmatic, by a driver that keeps edges alone."""

import itertools
import sys
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eagle_aot.runtime_runner.program.early_launch import WAITING, launch_early

PLAIN, PROGRAMMATIC = (0, 0), (1, 1)
"""Port and type of an edge, as `cuda.h` numbers them."""


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


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


class FakeDriver(ModuleType):
    """A graph of nodes that are numbers: `names` are those of kernels, None that of a copy and ""
    that of a kernel of a library. Edges have a port and a type. It refuses what CUDA does."""

    CUresult = Result
    CUgraphNodeType = NodeType
    CUgraphDependencyType = DependencyType
    CUgraphEdgeData = EdgeData
    CUgraph = int
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1

    def __init__(self, names: list[str | None], edges: list[tuple[int, int]]) -> None:
        super().__init__("driver")
        self.names, self.edges = names, dict.fromkeys(edges, PLAIN)

    def cuGraphGetEdges(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        some = list(self.edges)[:count]
        ends = [one for one, _ in some], [other for _, other in some]
        return Result.CUDA_SUCCESS, *ends, [None] * len(some), len(self.edges)

    def cuGraphNodeGetType(self, node: int) -> tuple[Result, NodeType]:
        return Result.CUDA_SUCCESS, NodeType(self.names[node] is None)

    def cuGraphKernelNodeGetParams(self, node: int) -> tuple[Result, SimpleNamespace | None]:
        if self.names[node] is None:
            return Result.CUDA_ERROR_INVALID_VALUE, None
        function = node + 1 if self.names[node] else 0
        return Result.CUDA_SUCCESS, SimpleNamespace(func=function)

    def cuFuncGetName(self, function: int) -> tuple[Result, bytes]:
        return Result.CUDA_SUCCESS, str(self.names[function - 1]).encode()

    def cuGraphRemoveDependencies(
        self, graph: int, before: list[int], after: list[int], data: list[EdgeData], count: int
    ) -> tuple[Result]:
        ((edge, kind),) = self._edges(before, after, data, count)
        if self.edges.get(edge) != kind:
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        del self.edges[edge]
        return (Result.CUDA_SUCCESS,)

    def cuGraphAddDependencies(
        self, graph: int, before: list[int], after: list[int], data: list[EdgeData], count: int
    ) -> tuple[Result]:
        ((edge, kind),) = self._edges(before, after, data, count)
        if edge in self.edges or (
            kind == PROGRAMMATIC and None in map(self.names.__getitem__, edge)
        ):
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        self.edges[edge] = kind
        return (Result.CUDA_SUCCESS,)

    def _edges(self, before: list[int], after: list[int], data: list[EdgeData], count: int) -> Any:
        assert len(before) == len(after) == count
        kinds = [(of.from_port, of.type) for of in data] or [PLAIN] * count
        return zip(zip(before, after, strict=True), kinds, strict=True)


def launched(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> list[tuple[int, int]]:
    """Return the edges that are programmatic after `launch_early`, which keeps all others."""
    bindings, edges = ModuleType("bindings"), sorted(driver.edges)
    bindings.driver = driver  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    count = launch_early(17)
    early = [edge for edge, kind in driver.edges.items() if kind == PROGRAMMATIC]
    assert count == len(early) and sorted(driver.edges) == edges
    return sorted(early)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["norm", WAITING, WAITING], [(0, 1), (1, 2)]),
        ([WAITING, "norm", WAITING], [(1, 2)]),
        ([None, WAITING, None, WAITING], []),
        (["", WAITING, "", "norm"], [(0, 1)]),
        ([WAITING], []),
    ],
)
def test_kernels_that_wait_start_early_after_a_kernel(
    monkeypatch: pytest.MonkeyPatch, names: list[str | None], expected: list[tuple[int, int]]
) -> None:
    chain = FakeDriver(names, list(itertools.pairwise(range(len(names)))))
    assert launched(monkeypatch, chain) == expected


def test_one_after_two_kernels_does_not_start_early(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, forked = [(0, 2), (1, 2)], [(0, 1), (0, 2)]
    assert launched(monkeypatch, FakeDriver([WAITING] * 3, joined)) == []
    assert launched(monkeypatch, FakeDriver([WAITING] * 3, forked)) == forked


def test_functions_with_data_of_edges_have_another_name_for_cuda_12(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = FakeDriver([WAITING, WAITING], [(0, 1)])
    for name in ("GetEdges", "AddDependencies", "RemoveDependencies"):
        setattr(driver, f"cuGraph{name}_v2", getattr(driver, f"cuGraph{name}"))
        setattr(driver, f"cuGraph{name}", None)
    assert launched(monkeypatch, driver) == [(0, 1)]


def test_what_the_driver_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver([WAITING, WAITING], [(0, 1)])
    driver.edges[0, 1] = (2, 1)
    with pytest.raises(RuntimeError, match="cuGraphRemoveDependencies: CUDA_ERROR_INVALID_VALUE"):
        launched(monkeypatch, driver)
