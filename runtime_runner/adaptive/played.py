"""A round as those see it who learn from it."""

from collections.abc import Sequence
from typing import NamedTuple

from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.round import Outcome


class Played(NamedTuple):
    """For one text: `emitted` tokens before its end, the first `accepted` of which were drafted,
    at most. Of a tree, `ranks` and `offered_ranks` are an `Outcome`'s. `token` came first, where
    `before` was expected."""

    accepted: int
    emitted: int
    ranks: Sequence[int] = ()
    offered_ranks: Sequence[int] = ()
    token: int = -1
    before: NextTokenProbs | None = None

    @classmethod
    def of(cls, outcome: Outcome, run: Sequence[int], before: NextTokenProbs | None) -> "Played":
        """An outcome of which the text takes `run`."""
        accepted, emitted = min(outcome.accepted, len(run)), len(run)
        return cls(
            accepted, emitted, outcome.ranks, outcome.offered_ranks, outcome.tokens[0], before
        )

    @property
    def chain(self) -> tuple[int, int]:
        """Of a tree, what the chain of its likeliest drafts alone would have come to: how many of
        these were looked at, and accepted."""
        accepted = 0
        while accepted < self.accepted and self.ranks[accepted + 1] == 0:
            accepted += 1
        missed = accepted < self.emitted and self.offered_ranks[accepted] & 1
        return accepted + bool(missed), accepted
