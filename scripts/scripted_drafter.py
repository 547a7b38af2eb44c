"""A drafter that knows how the text goes on, and is wrong when told to be."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class ScriptedDrafter:
    """Proposes the given continuation up to a number of right tokens, then wrong ones.

    `right(round)` says how many leading drafts of a round are right.
    """

    def __init__(
        self,
        continuation: Sequence[int],
        right: Callable[[int], int],
        device: torch.device | str = "cpu",
    ) -> None:
        self.continuation = list(continuation)
        self.right = right
        self.device = device
        self.committed = 0  # tokens of the continuation that are known to the drafter
        self.round = 0

    def extend(self, tokens: Tensor, features: Tensor, input_pos: Tensor, last: Tensor) -> None:
        committed = tokens[0, : int(last) + 1].tolist()
        if self.committed:
            self.committed += len(committed)
        elif committed[-1:] == self.continuation[:1]:
            self.committed = 1

    def propose(self, count: int) -> Tensor:
        right = self.right(self.round)
        self.round += 1
        following = self.continuation[self.committed : self.committed + count]
        following += [0] * (count - len(following))
        drafts = [[t if i < right else t ^ 1 for i, t in enumerate(following)]]
        return torch.tensor(drafts, device=self.device)
