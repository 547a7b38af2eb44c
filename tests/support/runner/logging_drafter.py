"""A drafter of blocks that keeps what it is given."""

from typing import Any

from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter


class LoggingDFlash(DFlashDrafter):
    """Keeps what was drafted and accepted, and the features of a prompt."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drafts: list[Draft] = []
        self.accepted: list[int] = []
        self.features: list[Tensor] = []

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        self.drafts.append(super().propose(running, shape))
        return self.drafts[-1]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        super().observe(accepted, features)
        if self.drafts:
            self.accepted.append(int(accepted.count))
        else:
            self.features.append(features)
