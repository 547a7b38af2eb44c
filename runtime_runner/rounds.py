"""Which round comes next."""

import time
from collections.abc import Sequence
from typing import Protocol

from eagle_aot.runtime_runner.backlog import Backlog
from eagle_aot.runtime_runner.chain_length import AUTO, ChainLen, ChainLength
from eagle_aot.runtime_runner.round import Round
from eagle_aot.runtime_runner.round_costs import RoundCosts


class Rounds(Protocol):
    """The rounds of a text, one after the other."""

    @property
    def chain_len(self) -> ChainLen:
        """As it was asked for."""

    def begin(self, prompt_tokens: int) -> Round:
        """A new text; the round that its prompt is to ready."""

    def choose(self, left: int) -> Round:
        """The next round, with `left` tokens to go."""

    def observe(self, round_: Round, accepted: int, emitted: int) -> None:
        """What came of it: drafts accepted, and tokens before the text's end."""


class SameRound:
    """One round, over and over."""

    def __init__(self, round_: Round) -> None:
        self._round = round_

    @property
    def chain_len(self) -> ChainLen:
        return self._round.chain_len

    def begin(self, prompt_tokens: int) -> Round:
        return self._round

    def choose(self, left: int) -> Round:
        return self._round

    def observe(self, round_: Round, accepted: int, emitted: int) -> None:
        """Nothing is learned."""


class ChosenRounds:
    """Rounds of every chain length over one cursor, and what chooses between them."""

    chain_len: ChainLen = AUTO

    def __init__(self, rounds: Sequence[Round], backlog: Backlog, chooser: ChainLength) -> None:
        """`rounds[K]` has K drafts; the drafter of `rounds[0]` is `backlog`."""
        self.rounds = rounds
        self.backlog = backlog
        self._chooser = chooser
        self._position = 0  # of the bonus token
        self._started = 0.0  # the round, seconds
        self._pending = 0  # plain tokens before it, which the drafter has not seen

    @property
    def costs(self) -> RoundCosts:
        """Of the rounds, as they were measured."""
        return self._chooser.costs

    def begin(self, prompt_tokens: int) -> Round:
        self._chooser.begin()
        self.backlog.clear()
        self._position, self._pending = prompt_tokens, 0
        return self.rounds[-1]

    def choose(self, left: int) -> Round:
        round_ = self._next(left)
        self._started = time.perf_counter()
        return round_

    def _next(self, left: int) -> Round:
        if self._pending and self._chooser.wants_to_look(self._pending, self._position):
            first = self._position - self._pending
            expected = self.backlog.catch_up(first, self._pending)
            self._chooser.observe_plain(expected, self._position)
            self._pending = 0
        elif self._pending == self.backlog.capacity:
            self.backlog.clear()
            self._chooser.skip_plain()
            self._pending = 0
            return self.rounds[0]
        plain = self._pending > 0
        return self.rounds[0 if plain else self._chooser.choose(left, self._position)]

    def observe(self, round_: Round, accepted: int, emitted: int) -> None:
        seconds = time.perf_counter() - self._started
        accepted_here, position = min(accepted, emitted), self._position
        self._chooser.observe(round_.chain_len, accepted_here, emitted, position, seconds)
        self._pending += round_.chain_len == 0
        self._position += accepted + 1
