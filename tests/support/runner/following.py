"""A drafter that checks whether it has observed the text that it continues."""

from collections.abc import Sequence

from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from support.runner.toy import SeeingDrafter, ToyTarget


class Followed(ToyTarget):
    """Copies the rows of its followers with its own, as `copy_rows` does those of heads."""

    followers: Sequence["Following"] = ()

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        super().copy_rows(source, sequence, count)
        for drafter in self.followers:
            rows = drafter.slots[int(source)]
            drafter.slots[int(sequence)] = {slot: rows.get(slot, -1) for slot in range(count)}


class Following(SeeingDrafter):
    """Keeps the token after each row, as a head's caches would, and fails if it has to draft for a
    text that it has not observed from the beginning."""

    def __init__(self, target: Followed, pattern: Sequence[bool]) -> None:
        super().__init__(target, pattern)
        self.slots: list[dict[int, int]] = [{} for _ in target.slots]
        self.proposals = 0
        target.followers = [*target.followers, self]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        super().observe(accepted, features)
        for b, sequence in enumerate(accepted.sequences.tolist()):
            first, count = int(accepted.bonus_position[b]), int(accepted.count[b])
            if first >= 0:
                tokens = accepted.tokens[b, : count + 1].tolist()
                self.slots[sequence].update(enumerate(tokens, start=first))

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        self.proposals += 1
        for index, sequence in enumerate(running.sequences.tolist()):
            if int(running.depth[index]) and (position := int(running.position[index])) >= 0:
                observed = [self.slots[sequence].get(slot) for slot in range(position)]
                assert observed == self._text(running, index)[1:], "rows that it has not observed"
        return super().propose(running, shape)
