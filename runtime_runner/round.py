"""One round of speculative decoding, where the tensors are.

Every shape is fixed by the chain length and nothing is read back to the host, so that a round can
be recorded once and replayed at any position of the text.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.runtime_runner.acceptance import count_accepted
from eagle_aot.runtime_runner.executors import Step


class Verifier(Protocol):
    """The target: runs tokens at consecutive positions through its cache."""

    def plan_prompt(self, length: int) -> list[range]:
        """Consecutive chunks that cover a prompt."""

    def forward(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens int64 [1, T] at `input_pos` int64 [T] -> greedy ids, features [1, T, H].

        Greedy ids int64 are those after each token [1, T], or after the last alone [1, 1] where
        the tokens are a chunk of a prompt.
        """


class Drafter(Protocol):
    """Guesses how the text goes on."""

    def extend(self, tokens: Tensor, features: Tensor, input_pos: Tensor, last: Tensor) -> None:
        """Commit the slots `input_pos` int64 [T] up to row `last` int64 [1]; rows behind it are
        padding.

        Each token of int64 [1, T] comes with the feature [1, T, H] of the position before it.
        """

    def propose(self, count: int) -> Tensor:
        """The next `count` tokens on top of what is committed, int64 [1, count]."""


class Cursor:
    """The state between rounds: `bonus` int64 [1, 1], the token that is decided but not in the
    target's cache yet, and its `position` int64 [1]. They lie in the same tensors for good."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.bonus = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)

    def place(self, bonus: Tensor, position: int) -> None:
        """Continue from `bonus` int64 [1, 1], the token at `position`."""
        self.bonus.copy_(bonus)
        self.position.fill_(position)


class Round:
    """Draft, verify, accept, reseed: the step from one state to the next.

    Rounds with the same cursor and drafter continue one another's text, whatever their chain
    lengths. A chain length of 0 is plain decoding. `play` is `step`, or a recording of it.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | None,
        chain_len: int,
        device: torch.device | str = "cpu",
        cursor: Cursor | None = None,
    ) -> None:
        """On a text of its own, unless there is a `cursor` of others."""
        self.verifier = verifier
        self.drafter = drafter
        self.chain_len = chain_len if drafter else 0
        self.device = device
        self.play: Step = self.step
        self._cursor = cursor or Cursor(device)
        self._window = torch.arange(self.chain_len + 1, device=device)

    def begin(self, bonus: Tensor, position: int) -> None:
        """Continue from `bonus` int64 [1, 1], the token at `position`, after a prefill."""
        self._cursor.place(bonus, position)

    def step(self) -> Tensor:
        """One verify forward.

        Returns int64 [chain_len + 2]: the number of accepted drafts a, then the target's greedy
        tokens, of which the first a + 1 continue the text.
        """
        cursor = self._cursor
        tokens, input_pos = cursor.bonus, cursor.position + self._window
        if self.drafter and self.chain_len:
            tokens = torch.cat((tokens, self.drafter.propose(self.chain_len)), dim=1)
        greedy, features = self.verifier.forward(tokens, input_pos)
        accepted = count_accepted(tokens[:, 1:], greedy)
        if self.drafter:
            self.drafter.extend(greedy, features, input_pos, accepted)
        cursor.bonus.copy_(greedy.index_select(1, accepted))
        cursor.position.add_(accepted + 1)
        return torch.cat((accepted, greedy[0]))


def rows(
    tokens: Sequence[int], start: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Token ids int64 [1, T] and their positions `start`, ... int64 [T]."""
    ids = torch.tensor([list(tokens)], dtype=torch.int64, device=device)
    return ids, torch.arange(start, start + len(tokens), device=device)
