"""Chain lengths in any order."""

import random

from eagle_aot.runtime_runner.adaptive.chain_length import ChainLength


class Shuffled(ChainLength):
    """Chooses at random, and looks at plain tokens at random."""

    rng = random.Random(4)

    def choose(self, left: int, position: int) -> tuple[int, int]:
        return self.rng.randrange(self.costs.longest + 1), self.rng.randint(1, 4)

    def wants_to_look(self, pending: int, position: int) -> bool:
        return self.rng.random() < 0.3
