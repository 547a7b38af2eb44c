"""The backlog: rows of plain rounds that the drafter was left out of, and catches up on later."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Drafter
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class CatchUpDrafter(Drafter, Protocol):
    """A drafter that can be left out of rounds for a while. `kind` is its name, `grows_trees`
    whether it drafts trees, `reads_features` whether it reads the target's features, and not the
    text alone."""

    kind: str
    grows_trees: bool
    reads_features: bool

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Commit a path with features [B, P, H], as `observe` does.

        Returns bool [B, P]: whether it would have drafted each of the path's tokens.
        """


class Backlog:
    """Stands in for the drafter in plain rounds of one request, and keeps their features.

    Before the drafter drafts again it commits them all in one forward, instead of one for each.
    A drafter that reads the text alone observes plain rounds at once, and only predicts their
    tokens later.
    """

    def __init__(self, drafter: CatchUpDrafter, capacity: int, batch: BatchState) -> None:
        """`capacity` is the number of rows that may be kept before `clear` or `catch_up`."""
        self.capacity = capacity
        self._drafter, self._batch = drafter, batch
        device = batch.bonus.device
        self._features = torch.empty(1, capacity, 0, device=device)  # [1, capacity, H]
        self._count = torch.zeros(1, dtype=torch.int64, device=device)

    def clear(self) -> None:
        """Forget all rows. If the drafter never observes them, the slots in its cache keep what an
        earlier request left there, and drafts after them may be worse."""
        self._count.zero_()

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Keep the row of a plain round, features [1, 1, H]: a recorded round writes each time to
        the same tensor."""
        if not self._drafter.reads_features:
            self._drafter.observe(accepted, features)
            return
        if not self._features.numel():
            self._features = features.new_zeros(1, self.capacity, features.shape[2])
        self._features.index_copy_(1, self._count, features)
        self._count.add_(1)

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Propose no drafts."""
        assert shape.nodes == 0, "for plain rounds alone"
        return Draft(batch.bonus[:, :0])

    def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
        """Let the drafter commit `tokens`, whose slots start at `first`, with the features that
        were kept, and forget them. Returns whether it would have drafted each token."""
        device = self._features.device
        following = torch.tensor([list(tokens)], dtype=torch.int64, device=device)
        slots = torch.arange(first, first + len(tokens), device=device)
        path = committed(following, slots, self._batch.sequences)
        features = self._features[:, : len(tokens)]
        correct = self._drafter.catch_up(path, features, self._batch.sampler)
        self.clear()
        return correct[0].tolist()
