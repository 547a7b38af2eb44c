"""Shapes in any order."""

import random

from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.rounds.outlook import Outlook
from eagle_aot.runtime_runner.rounds.shape import Shape


class Shuffled(Chooser):
    """Chooses at random, and looks at plain tokens at random."""

    rng = random.Random(4)

    def choose(self, left: int, position: int, outlook: Outlook | None = None) -> tuple[Shape, int]:
        return self.rng.choice(list(self.costs.rounds)), self.rng.randint(1, 4)

    def wants_to_look(self, pending: int, position: int) -> bool:
        return self.rng.random() < 0.3
