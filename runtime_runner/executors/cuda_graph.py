"""Steps recorded as CUDA graphs."""

from typing import Any

import torch
from torch import Tensor

from eagle_aot.runtime_runner.executors import Call
from eagle_aot.runtime_runner.executors.early_launch import EarlyLaunch


def record(step: Call, pool: Any, early: EarlyLaunch | None = None) -> Call:
    """Run `step` once, so that everything it loads lazily is there; then record it for replay.

    `pool` is memory that several recordings share, because no two of them run at once. With `early`
    kernels begin while the one before them ends, where they can.
    """
    step()
    graph = torch.cuda.CUDAGraph(keep_graph=early is not None)
    with torch.cuda.graph(graph, pool=pool):
        result = step()
    if early is not None:
        early.instantiate(graph)

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
