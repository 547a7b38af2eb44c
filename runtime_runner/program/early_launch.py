"""Lets kernels of a CUDA graph start their blocks while the kernel before them ends.

The edges of a captured graph open when the kernel before has ended. To a kernel that waits for this
in its own code, an edge may be programmatic: then its blocks start as those before them leave room
(programmatic dependent launch; `CUgraphEdgeData` in CUDA's driver API).
"""

from collections import Counter
from importlib import import_module
from typing import Any

WAITING = "layer_products_kernel"
"""The kernel that waits in its code. Before, it fetches weights, which no kernel writes."""


def launch_early(graph: int) -> int:
    """Make programmatic all edges of a captured `CUgraph` from a kernel to a `WAITING` one that has
    no other edge; return their number.

    `cuda.bindings`, which this needs, comes with PyTorch for CUDA. Raises RuntimeError if the
    driver refuses, with an edge missing: do not run the graph then.
    """
    captured = CapturedGraph(import_module("cuda.bindings.driver"), graph)
    edges = captured.edges()
    dependencies = Counter(int(node) for _, node in edges)
    early = [
        (before, node)
        for before, node in edges
        if dependencies[int(node)] == 1
        and captured.kernel_name(node) == WAITING
        and captured.is_kernel(before)
    ]
    for edge in early:
        captured.make_programmatic(*edge)
    return len(early)


class CapturedGraph:
    """A graph as the `driver` has it."""

    def __init__(self, driver: Any, graph: int) -> None:
        self._driver = driver
        self._graph = driver.CUgraph(graph)

    def edges(self) -> list[tuple[Any, Any]]:
        """Return the nodes at both ends of every edge, the one that runs first before the other."""
        *_, count = self._call("cuGraphGetEdges", self._graph)
        before, after, *_ = self._call("cuGraphGetEdges", self._graph, count)
        return list(zip(before, after, strict=True))

    def is_kernel(self, node: Any) -> bool:
        (kind,) = self._call("cuGraphNodeGetType", node)
        return bool(kind == self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)

    def kernel_name(self, node: Any) -> str:
        """Return the name of a node's kernel, or nothing for other nodes and kernels of libraries,
        which are no functions of a module."""
        if not self.is_kernel(node):
            return ""
        (parameters,) = self._call("cuGraphKernelNodeGetParams", node)
        if not int(parameters.func):
            return ""
        (name,) = self._call("cuFuncGetName", parameters.func)
        return str(name.decode())

    def make_programmatic(self, before: Any, after: Any) -> None:
        """Replace a plain edge. Raises RuntimeError."""
        data = self._driver.CUgraphEdgeData()
        data.from_port = int(self._driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        data.type = int(self._driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        ends = self._graph, [before], [after]
        self._call("cuGraphRemoveDependencies", *ends, [], 1)
        self._call("cuGraphAddDependencies", *ends, [data], 1)

    def _call(self, name: str, *arguments: Any) -> list[Any]:
        """Return what a function of the driver does, without its error code. Of functions with data
        of edges, packages for CUDA 12 have two versions. Raises RuntimeError."""
        function = getattr(self._driver, f"{name}_v2", None) or getattr(self._driver, name)
        error, *results = function(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {error.name}")
        return results
