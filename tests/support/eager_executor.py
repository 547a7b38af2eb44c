"""A pair's eager methods behind the runner's executor interface."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eagle_aot.export import Pair
from eagle_aot.runtime_runner.executors import Call


class EagerExecutor:
    """Runs the methods without exporting them, and counts the calls."""

    name = "eager"
    device = torch.device("cpu")

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.calls: dict[str, int] = {}

    def constants(self) -> Mapping[str, Sequence[Any]]:
        return {}

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.calls[method] = self.calls.get(method, 0) + 1
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = getattr(self.pair, method)(*inputs)
        return outputs

    def repeat(self, step: Call) -> Call:
        return step
