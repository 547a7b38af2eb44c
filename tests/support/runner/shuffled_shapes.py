"""Shapes in any order."""

import random

from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.shape import Shape


class Shuffled(Chooser):
    """Deals all shapes, shuffled, then again, and looks at plain tokens at random."""

    def __init__(self, costs: RoundCosts) -> None:
        super().__init__(costs)
        self.rng, self.dealt = random.Random(4), list[Shape]()

    def decide(self, next_token_probs: NextTokenProbs | None) -> tuple[Shape, int]:
        self.dealt = self.dealt or self.rng.sample(list(self.costs.rounds), len(self.costs.rounds))
        return self.dealt.pop(), self.rng.randint(1, 4)

    def wants_to_look(self, pending: int, position: int) -> bool:
        return self.rng.random() < 0.3
