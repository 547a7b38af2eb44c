"""A pair's eager methods behind the runner's executor interface."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_PREFILL, EAGLE3
from eagle_aot.export import Pair
from eagle_aot.export.drafters.eagle3.methods import DraftPrefillMethod
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.methods import method_specs
from eagle_aot.runtime_runner.program.executor import Call


class EagerExecutor:
    """Runs the methods without exporting them, and counts the calls."""

    name = "eager"
    device = torch.device("cpu")

    def __init__(self, pair: Pair) -> None:
        lengths = method_lengths(96, 96, 0, pair.target.sequences)
        self.methods = {name: spec.module for name, spec in method_specs(pair, lengths).items()}
        if pair.draft.kind == EAGLE3:
            self.methods[DRAFT_PREFILL] = DraftPrefillMethod(pair)
        self.calls: dict[str, int] = {}

    def constants(self) -> Mapping[str, Sequence[Any]]:
        return {}

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.calls[method] = self.calls.get(method, 0) + 1
        with torch.no_grad():
            outputs: Tensor | tuple[Tensor, ...] = self.methods[method](*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs

    def repeat(self, step: Call) -> Call:
        return step
