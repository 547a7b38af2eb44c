"""A drafter that is looked at."""

from eagle_aot.runtime_runner.rounds.round import Drafter, Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.step import Draft


class Watched:
    """Keeps the last draft that a drafter proposed."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.observe = drafter, drafter.observe

    def propose(self, running: Running, shape: Shape) -> Draft:
        self.last = self._drafter.propose(running, shape)
        return self.last
