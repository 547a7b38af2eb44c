"""The caches of an artifact: who has which, at which place, and what is left in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from eagle_aot.runtime_runner.prompts.kept import KeptText
from eagle_aot.runtime_runner.rounds.round import Running
from eagle_aot.runtime_runner.rounds.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What a text of `length` tokens leaves in its cache: rows of all of `tokens` but the last, the
    first `kept` of which were there before. `prompt_tokens` of them were read. `scratch` slots
    behind a tail's may be written."""

    tokens: Sequence[int]
    prompt_tokens: int
    kept: int
    length: int
    scratch: int


class Sequences:
    """`order` is the sequence at each place of `running`; `free` are those that nobody has, the one
    that was left longest ago first."""

    def __init__(self, running: Running, target: Target) -> None:
        self._running, self._target = running, target
        self.order: list[int] = running.sequences.tolist()
        self.free = list(self.order)
        self._kept: dict[int, KeptText] = {}

    def take(self, prompt: Sequence[int], reuse: bool) -> tuple[int, int]:
        """A free one for a prompt, and how many of its rows are there, which is 0 unless rows may
        be reused."""
        plan, rewind = partial(self._target.plan_prompt, len(prompt)), self._target.rewind
        shared = {
            sequence: self._kept.get(sequence, KeptText()).shared(prompt, plan, rewind)
            for sequence in self.free
            if reuse
        }
        sequence = max(self.free, key=lambda s: shared.get(s, 0))
        self.free.remove(sequence)
        return sequence, shared.get(sequence, 0)

    def cache(self, sequence: int) -> Tensor:
        """As methods take it, int64 [1]."""
        place = self.order.index(sequence)
        return self._running.sequences[place : place + 1]

    def bring(self, sequence: int, place: int) -> None:
        """To a place; who was there comes to its own."""
        own = self.order.index(sequence)
        if own != place:
            self._running.swap(own, place)
            self.order[own], self.order[place] = self.order[place], self.order[own]

    def give_back(self, sequence: int, left: Left | None) -> None:
        """It is free, and holds what a text left; None where that is not known."""
        before = self._kept.pop(sequence, KeptText())
        self.free.append(sequence)
        if left is not None:
            plan = self._target.plan_prompt(left.prompt_tokens)
            written = left.length + self._target.tail + left.scratch  # with drafts, at most
            self._kept[sequence] = before.followed_by(left.tokens, plan, left.kept, written)

    def forget(self, *sequences: int) -> None:
        """What sequences hold that are free, all of them where none is named."""
        for sequence in sequences or self.order:
            self._kept.pop(sequence, None)
