"""Drafters that know how the text goes on, and are wrong when told to be."""

from collections.abc import Callable, Sequence

from torch import Tensor


class ScriptedDrafter:
    """Proposes the given continuation up to a number of right tokens, then wrong ones.

    `right(round)` says how many leading drafts of a round are right.
    """

    def __init__(self, continuation: Sequence[int], right: Callable[[int], int]) -> None:
        self.continuation = list(continuation)
        self.right = right
        self.committed = 0  # tokens of the continuation that are known to the drafter
        self.round = 0

    def extend(self, tokens: Sequence[int], features: Tensor, start: int) -> None:
        if self.committed:
            self.committed += len(tokens)
        elif list(tokens)[-1:] == self.continuation[:1]:
            self.committed = 1

    def propose(self, count: int) -> list[int]:
        right = self.right(self.round)
        self.round += 1
        following = self.continuation[self.committed : self.committed + count]
        following += [0] * (count - len(following))
        return [t if i < right else t ^ 1 for i, t in enumerate(following)]
