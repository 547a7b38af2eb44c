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

    def observe(self, round_: Round, accepted: int, run: Sequence[int]) -> None:
        """What came of it: drafts accepted, and the tokens before the text's end."""


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

    def observe(self, round_: Round, accepted: int, run: Sequence[int]) -> None:
        """Nothing is learned."""


class ChosenRounds:
    """Rounds of every chain length over one cursor, and what chooses between them.

    Within a run of plain rounds nothing is asked: choosing costs a small model more than it wins.
    """

    chain_len: ChainLen = AUTO

    def __init__(self, rounds: Sequence[Round], backlog: Backlog, chooser: ChainLength) -> None:
        """`rounds[K]` has K drafts; the drafter of `rounds[0]` is `backlog`."""
        self.rounds = rounds
        self.backlog = backlog
        self._chooser = chooser
        self._position = 0  # of the first token that the drafter has not seen
        self._started = 0.0  # the round, by the host's clock
        self._seconds = 0.0  # in rounds that the chooser does not know of
        self._pending: list[int] = []  # plain tokens from there up to the bonus token
        self._run = 0  # plain rounds to play before the chooser is asked again
        self._run_left = 0  # of them

    @property
    def costs(self) -> RoundCosts:
        """Of the rounds, as they were measured."""
        return self._chooser.costs

    def begin(self, prompt_tokens: int) -> Round:
        self._chooser.begin()
        self.backlog.clear()
        self._position = prompt_tokens
        self._pending, self._run_left, self._seconds = [], 0, 0.0
        return self.rounds[-1]

    def choose(self, left: int) -> Round:
        round_ = self.rounds[0] if self._run_left else self._next(left)
        self._started = time.perf_counter()
        return round_

    def observe(self, round_: Round, accepted: int, run: Sequence[int]) -> None:
        self._seconds += time.perf_counter() - self._started
        if self._run_left:
            self._pending += run
            self._run_left -= 1
            if not self._run_left:
                self._chooser.observe_plain(self._run, self._place() - 1, self._taken())
            return
        emitted, position = len(run), self._position
        here = min(accepted, emitted)
        self._chooser.observe(round_.chain_len, here, emitted, position, self._taken())
        self._position += accepted + 1

    def _taken(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _place(self) -> int:
        """Of the bonus token."""
        return self._position + len(self._pending)

    def _next(self, left: int) -> Round:
        pending, place = len(self._pending), self._place()
        if pending and self._chooser.wants_to_look(pending, place):
            expected = self.backlog.catch_up(self._position, self._pending)
            self._chooser.observe_look(expected, place)
        elif pending == self.backlog.capacity:
            self.backlog.clear()
            self._chooser.skip_plain()
            self._position, self._pending = place, []
            return self._plain_run()
        elif pending:
            return self._plain_run()
        self._position, self._pending = place, []
        chain_len = self._chooser.choose(left, place)
        return self.rounds[chain_len] if chain_len else self._plain_run()

    def _plain_run(self) -> Round:
        room = self.backlog.capacity - len(self._pending)
        self._run = self._run_left = min(self._chooser.plain_run(), room)
        return self.rounds[0]
