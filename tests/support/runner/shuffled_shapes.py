"""A chooser that ignores speed."""

import random
from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable
from eagle_aot.runtime_runner.decode.shape import Shape


class ShuffledChooser(Chooser):
    """Deals all shapes in random order, again and again, and lets the drafter catch up at random
    times."""

    def __init__(self, costs: CostTable) -> None:
        super().__init__(costs)
        self.rng, self.dealt = random.Random(4), list[Shape]()

    def choose_run(
        self, shapes: Sequence[Shape], position: int, remaining_tokens: int, pending: float = 0.0
    ) -> tuple[Shape, int]:
        self.dealt = self.dealt or self.rng.sample(shapes, len(shapes))
        return self.dealt.pop(), self.rng.randint(1, 4)

    def covers(self, loss: float) -> bool:
        return self.rng.random() < 0.3
