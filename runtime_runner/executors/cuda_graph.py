"""Steps recorded as CUDA graphs."""

from typing import Any

import torch
from torch import Tensor

from eagle_aot.runtime_runner.executors import Call


def record(step: Call, pool: Any) -> Call:
    """Run `step` once, so that everything it loads lazily is there; then record it for replay.

    `pool` is memory that several recordings share, because no two of them run at once.
    """
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = step()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
