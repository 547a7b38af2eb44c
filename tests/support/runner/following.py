"""A drafter that looks whether it was shown what it drafts behind."""

from collections.abc import Sequence

from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.toy import SeeingDrafter, ToyTarget


class Followed(ToyTarget):
    """Copies the rows of its followers with its own, as `copy_rows` does those of heads."""

    followers: Sequence["Following"] = ()

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        super().copy_rows(source, sequence, count)
        for drafter in self.followers:
            rows = drafter.slots[int(source)]
            drafter.slots[int(sequence)] = {place: rows.get(place, -1) for place in range(count)}


class Following(SeeingDrafter):
    """Keeps the token that was told behind each row, as a head's caches would, and drafts for
    nobody of whose text it was not shown all."""

    def __init__(self, target: Followed, pattern: Sequence[bool]) -> None:
        super().__init__(target, pattern)
        self.slots: list[dict[int, int]] = [{} for _ in target.slots]
        self.proposals = 0
        target.followers = [*target.followers, self]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        super().observe(accepted, features)
        for b, sequence in enumerate(accepted.sequences.tolist()):
            first, count = int(accepted.first[b]), int(accepted.count[b])
            if first >= 0:
                told = accepted.tokens[b, : count + 1].tolist()
                self.slots[sequence].update(enumerate(told, start=first))

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        self.observe(accepted, features)
        return accepted.tokens < 0  # it would have drafted none of them

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        self.proposals += 1
        for place, sequence in enumerate(running.sequences.tolist()):
            if int(running.depth[place]) and (position := int(running.position[place])) >= 0:
                shown = [self.slots[sequence].get(slot) for slot in range(position)]
                text = self._text(running, place)
                assert shown == text[1:], "it drafts behind what it was not shown"
        return super().propose(running, shape)
