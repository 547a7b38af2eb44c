"""A drafter that knows how the text goes on, and is wrong when told to be."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.rounds.acceptance import Accepted
from eagle_aot.runtime_runner.rounds.round import Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.step import Draft

PADDING = 64  # a round may look that far behind the end


class ScriptedDrafter:
    """Proposes the given continuation of a prompt up to a number of right tokens, then wrong ones.

    `right(known)` says how many leading drafts of a round are right, int64 [1], from the number of
    tokens of the continuation that are known, int64 [1]. All of it stays on the device, so that a
    round with this drafter can be recorded.
    """

    def __init__(
        self,
        prompt_tokens: int,
        continuation: Sequence[int],
        right: Callable[[Tensor], Tensor],
        device: torch.device | str = "cpu",
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.continuation = torch.tensor([*continuation, *[0] * PADDING], device=device)
        self.right = right
        self.known = torch.zeros(1, dtype=torch.int64, device=device)

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """The token behind the last accepted one is known now."""
        self.known.copy_(accepted.first + accepted.count + 2 - self.prompt_tokens)

    def propose(self, running: Running, shape: Shape) -> Draft:
        """A chain."""
        step = torch.arange(shape.depth, device=self.known.device)
        place = (self.known + step).clamp_max(len(self.continuation) - 1)
        following = self.continuation.index_select(0, place)
        wrong = step >= self.right(self.known)
        return Draft(torch.where(wrong, following ^ 1, following).unsqueeze(0))
