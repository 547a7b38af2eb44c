"""A step recorded as a CUDA graph."""

from typing import Any

import torch
from torch import Tensor

from eagle_aot.runtime_runner.executors import Step


class RecordedStep:
    """Runs `step` as it is once, so that everything it loads lazily is there; then records it.

    `pool` is memory that several recordings share, because no two of them run at once.
    """

    def __init__(self, step: Step, pool: Any) -> None:
        self._step = step
        self._pool = pool
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.empty(0)

    def __call__(self) -> Tensor:
        if not self._warm:
            self._warm = True
            return self._step()
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        return self._result

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._result = self._step()
        return graph
