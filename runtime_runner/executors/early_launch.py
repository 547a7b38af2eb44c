"""Recorded steps whose kernels begin while the one before them ends.

A step is recorded with edges that open when the kernel before has ended. Those that lead to a
kernel which waits for that by itself (`triton_kernels/early_launch.py`) are exchanged for edges
that open as soon as all programs of the kernel before have let the next begin, or have ended:
programmatic ones, CUDA calls them (`CUgraphEdgeData` in its driver's documentation).
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

log = logging.getLogger(__name__)

Edge = tuple[Any, Any]
"""The nodes before and behind."""

PLAIN: Sequence[Any] = ()
"""Data of an edge that opens when the kernel before has ended: none."""


class DriverError(RuntimeError):
    """The CUDA driver did not do what it was asked."""


class EarlyLaunch:
    """Lets the kernels named `waiting` begin early. `edges` counts where, in all recorded steps."""

    def __init__(self, waiting: Collection[str]) -> None:
        self._waiting = frozenset(waiting)
        self.edges = 0

    def instantiate(self, graph: torch.cuda.CUDAGraph) -> None:
        """Make a captured graph ready for replay; it keeps its edges where the driver, or the
        package that speaks to it, cannot exchange them, which is logged once."""
        try:
            recorded = RecordedGraph(driver(), graph.raw_cuda_graph())
            early = recorded.early_edges(self._waiting)
            recorded.relax(early)
        except (ImportError, AttributeError, DriverError) as error:
            self._give_up(error)
            graph.instantiate()
            return
        try:
            graph.instantiate()
        except RuntimeError as error:
            recorded.restore(early)
            graph.instantiate()
            self._give_up(error)
        else:
            self.edges += len(early)

    def _give_up(self, error: Exception) -> None:
        if self._waiting:
            log.warning("kernels begin when the one before has ended: %s", error)
        self._waiting = frozenset()


def driver() -> Any:
    """The driver's interface. Raises ImportError where its package is not installed."""
    from cuda.bindings import driver  # a part of PyTorch for CUDA

    return driver


class RecordedGraph:
    """The edges of a captured graph, as the driver has them."""

    def __init__(self, driver: Any, graph: int) -> None:
        """`graph` is a `CUgraph`."""
        self._driver = driver
        self._graph = driver.CUgraph(graph)

    def early_edges(self, waiting: Collection[str]) -> list[Edge]:
        """Those from a kernel to one that waits for it, and has no other to wait for.

        Raises DriverError.
        """
        edges = self._edges() if waiting else []
        before = Counter(int(to) for _, to in edges)
        return [
            (one, other)
            for one, other in edges
            if before[int(other)] == 1 and self._name(other) in waiting and self._is_kernel(one)
        ]

    def relax(self, edges: Sequence[Edge]) -> None:
        """Let the kernels behind begin early. Raises DriverError, with all edges as they were."""
        done: list[Edge] = []
        try:
            for edge in edges:
                self._exchange(edge, PLAIN, [self._programmatic()])
                done.append(edge)
        except DriverError:
            self.restore(done)
            raise

    def restore(self, edges: Sequence[Edge]) -> None:
        """Undo `relax`. Raises DriverError."""
        for edge in edges:
            self._exchange(edge, [self._programmatic()], PLAIN)

    def _programmatic(self) -> Any:
        data = self._driver.CUgraphEdgeData()
        data.from_port = int(self._driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        data.type = int(self._driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        return data

    def _edges(self) -> list[Edge]:
        """Their data is not read: the package returns what it has freed. An edge that is not plain
        cannot be removed as one."""
        *_, count = self._call("cuGraphGetEdges", self._graph)
        before, behind, *_ = self._call("cuGraphGetEdges", self._graph, count)
        return list(zip(before, behind, strict=True))

    def _exchange(self, edge: Edge, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Raises DriverError, with the edge as it was."""
        ends = [[node] for node in edge]
        self._call("cuGraphRemoveDependencies", self._graph, *ends, old, 1)
        try:
            self._call("cuGraphAddDependencies", self._graph, *ends, new, 1)
        except DriverError:
            self._call("cuGraphAddDependencies", self._graph, *ends, old, 1)
            raise

    def _is_kernel(self, node: Any) -> bool:
        (kind,) = self._call("cuGraphNodeGetType", node)
        return bool(kind == self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)

    def _name(self, node: Any) -> str | None:
        """A kernel's; None of other nodes, and where the driver does not tell."""
        if not self._is_kernel(node):
            return None
        try:
            (parameters,) = self._call("cuGraphKernelNodeGetParams", node)
            if int(parameters.func):
                (name,) = self._call("cuFuncGetName", parameters.func)
            else:
                (name,) = self._call("cuKernelGetName", parameters.kern)
        except DriverError:  # of a kernel that is not ours
            return None
        return str(name.decode())

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        """What a function of the driver returns. Before CUDA 13 those of edges with data have
        another name. Raises DriverError."""
        function = getattr(self._driver, f"{name}_v2", None) or getattr(self._driver, name)
        error, *results = function(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"{name} answered {error.name}")
        return results
