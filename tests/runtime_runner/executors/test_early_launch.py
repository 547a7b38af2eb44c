"""Which edges of a recorded step open early, by a driver that is not there."""

import itertools
import logging
import sys

import pytest

from eagle_aot.runtime_runner.executors import early_launch
from eagle_aot.runtime_runner.executors.early_launch import EarlyLaunch
from support.fake_driver import PLAIN, PROGRAMMATIC, FakeDriver

OURS = ("product", "norm")


class FakeGraph:
    """A captured graph, as PyTorch has it; a driver that `refuses` makes no graph with programmatic
    edges ready."""

    def __init__(self, driver: FakeDriver, refuses: bool = False) -> None:
        self.driver, self.refuses = driver, refuses
        self.ready: list[dict[tuple[int, int], tuple[int, int]]] = []

    def raw_cuda_graph(self) -> int:
        return 17

    def instantiate(self) -> None:
        if self.refuses and PROGRAMMATIC in self.driver.edges.values():
            raise RuntimeError("CUDA error: operation not supported")
        self.ready.append(dict(self.driver.edges))


def chain(*names: str | None) -> FakeDriver:
    """A step's nodes, one behind the other."""
    edges = dict.fromkeys(itertools.pairwise(range(len(names))), PLAIN)
    return FakeDriver(list(names), edges)


def instantiated(
    monkeypatch: pytest.MonkeyPatch, graph: FakeGraph, early: EarlyLaunch
) -> list[tuple[int, int]]:
    """The edges that open early in what is replayed."""
    monkeypatch.setattr(early_launch, "driver", lambda: graph.driver)
    early.instantiate(graph)
    (ready,) = graph.ready
    return [edge for edge, kind in ready.items() if kind == PROGRAMMATIC]


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (chain("norm", "product", "product"), [(0, 1), (1, 2)]),
        (chain("norm", "theirs", "product"), [(1, 2)]),
        (chain(None, "norm", None, "product"), []),
        (chain("product", "", "norm", "normal"), [(1, 2)]),
        (chain("product"), []),
        (FakeDriver(["theirs", "norm"], {(0, 1): PLAIN}, of_library=(0, 1)), [(0, 1)]),
        (FakeDriver(["norm", "norm", "norm"], {(0, 2): PLAIN, (1, 2): PLAIN}), []),
        (FakeDriver(["norm"] * 3, {(0, 1): PLAIN, (0, 2): PLAIN}), [(0, 1), (0, 2)]),
    ],
)
def test_a_kernel_that_waits_begins_early_behind_a_kernel(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, expected: list[tuple[int, int]]
) -> None:
    """And only it: one that does not wait, and one behind two others, begin as they did."""
    early, edges = EarlyLaunch(OURS), list(driver.edges)
    assert sorted(instantiated(monkeypatch, FakeGraph(driver), early)) == expected
    assert sorted(driver.edges) == sorted(edges) and early.edges == len(expected)


def test_edges_before_cuda_13_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = chain("norm", "product")
    for name in ("GetEdges", "AddDependencies", "RemoveDependencies"):
        new = getattr(driver, f"cuGraph{name}")
        monkeypatch.setattr(driver, f"cuGraph{name}_v2", new, raising=False)
        monkeypatch.setattr(driver, f"cuGraph{name}", None)
    assert instantiated(monkeypatch, FakeGraph(driver), EarlyLaunch(OURS)) == [(0, 1)]


@pytest.mark.parametrize("case", ["one edge too many", "an edge of another kind", "not ready"])
def test_a_graph_that_is_refused_keeps_its_edges(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    driver, other = chain("norm", "product", "norm", "product"), chain("norm", "product")
    if case == "one edge too many":
        driver.programmatic = 2
    if case == "an edge of another kind":
        driver.edges[2, 3] = (2, 1)
    before = dict(driver.edges)
    early = EarlyLaunch(OURS)
    with caplog.at_level(logging.WARNING):
        assert instantiated(monkeypatch, FakeGraph(driver, case == "not ready"), early) == []
        assert instantiated(monkeypatch, FakeGraph(other), early) == []
    assert driver.edges == before and early.edges == 0
    (said,) = caplog.messages  # once, of two graphs
    assert said.startswith("kernels begin when the one before has ended: ")


def test_without_the_drivers_package_edges_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    graph, early = FakeGraph(chain("norm", "product")), EarlyLaunch(OURS)
    early.instantiate(graph)
    assert graph.ready == [{(0, 1): PLAIN}] and "cuda.bindings" in caplog.messages[0]
