"""The drafter's stand-in in plain rounds."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.round import BatchState, Drafter
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class CatchUpDrafter(Drafter, Protocol):
    """A drafter that can be left out of rounds for a while; `kind` is its name, and `grows_trees`
    whether it knows more than one way on."""

    kind: str
    grows_trees: bool

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Commit a path as `observe` does.

        Returns bool [B, P]: which of its tokens it would have drafted, each being the next one.
        """


class Backlog:
    """Takes the drafter's place in rounds that draft nothing, and keeps the features of their
    tokens.

    Before the drafter drafts again it commits them all in one forward, instead of one for each.
    """

    def __init__(self, drafter: CatchUpDrafter, capacity: int, running: BatchState) -> None:
        """Of `capacity` rows: it is to be cleared, or caught up with, before there are more."""
        self.capacity = capacity
        self._drafter = drafter
        self._running = running
        self._kept: list[Tensor] = []  # [1, 1, H] each

    def clear(self) -> None:
        """Forget all rows. Where the drafter never sees them, their slots keep what an earlier text
        left there, and drafts behind them may be worse."""
        self._kept.clear()

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Keep the one row of a plain round, instead of committing its slot."""
        self._kept.append(features)

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """No drafts."""
        assert shape.nodes == 0, "for plain rounds alone"
        return Draft(running.bonus[:, :0])

    def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
        """Let the drafter commit the rows kept, and forget them: those of `tokens`, whose slots
        start at `first`. Returns which of the tokens it would have drafted."""
        features = self._features(len(tokens))
        following = torch.tensor([list(tokens)], dtype=torch.int64, device=features.device)
        batch_size = torch.arange(first, first + len(tokens), device=features.device)
        path = committed(following, batch_size, self._running.sequences)
        expected = self._drafter.catch_up(path, features, self._running.sampler)
        self.clear()
        return expected[0].tolist()

    def _features(self, count: int) -> Tensor:
        return torch.cat(self._kept, dim=1)


class NoBacklog(Backlog):
    """For a drafter that reads tokens alone: it is shown those of plain rounds at once, and to
    catch up is only to say what it would have drafted."""

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        self._drafter.observe(accepted, features)

    def _features(self, count: int) -> Tensor:
        return torch.empty(1, count, 0, device=self._running.bonus.device)


class RecordedBacklog(Backlog):
    """For rounds that are recorded: each replay writes its feature to the same tensor."""

    def __init__(self, drafter: CatchUpDrafter, capacity: int, running: BatchState) -> None:
        super().__init__(drafter, capacity, running)
        self._buffer = torch.empty(0)  # [1, capacity, H], once there is one
        self._next = torch.zeros(1, dtype=torch.int64, device=running.bonus.device)  # row

    def clear(self) -> None:
        self._next.zero_()

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        if not self._buffer.numel():
            self._buffer = features.new_zeros(1, self.capacity, features.shape[2])
        self._buffer.index_copy_(1, self._next, features)
        self._next.add_(1)

    def _features(self, count: int) -> Tensor:
        return self._buffer[:, :count]
