"""A drafter and a target that are looked at."""

from torch import Tensor

from eagle_aot.runtime_runner.rounds.round import Drafter, Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.step import Draft, StepRows
from eagle_aot.runtime_runner.rounds.target import Forward, Target


class Watched:
    """Keeps the last draft that a drafter proposed."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.observe = drafter, drafter.observe

    def propose(self, running: Running, shape: Shape) -> Draft:
        self.last = self._drafter.propose(running, shape)
        return self.last


class WatchedTarget:
    """Keeps the logits of the last step that a target ran."""

    def __init__(self, target: Target) -> None:
        self._target, self.tail, self.copies = target, target.tail, target.copies
        self.max_rows = target.max_rows
        self.rewind, self.window, self.never = target.rewind, target.window, target.never
        self.plan_prompt, self.run_prompt = target.plan_prompt, target.run_prompt
        self.plan_around, self.given_rows = target.plan_around, target.given_rows
        self.run_given, self.showing = target.run_given, target.showing
        self.copy_rows = target.copy_rows

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        forward = self._target.verify(step, moves)
        self.last = forward.logits
        return forward
