"""Which round of a text comes next: how many drafts each has."""

import time
from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chain_length import (
    PLAIN_RUN,
    ChainLength,
)
from eagle_aot.runtime_runner.adaptive.round_costs import RoundCosts
from eagle_aot.runtime_runner.rounds.round import Round


class AdaptiveSchedule:
    """Rounds of every chain length over one cursor, and what chooses between them.

    They are chosen in runs, within which nothing is asked: after each forward the host's caches
    hold other things, so that choosing costs a small model more than it wins.
    """

    def __init__(self, rounds: Sequence[Round], backlog: Backlog, chooser: ChainLength) -> None:
        """`rounds[K]` has K drafts; the drafter of `rounds[0]` is `backlog`."""
        self.rounds = rounds
        self.backlog = backlog
        self._chooser = chooser
        self._position = 0  # of the first token that the drafter has not seen
        self._pending: list[int] = []  # plain tokens from there up to the bonus token
        self._run = rounds[0]
        self._run_left = 0  # rounds
        self._played: list[tuple[int, int]] = []  # of the run: (accepted, emitted)
        self._seconds = 0.0  # that they took
        self._started = 0.0  # the round, by the host's clock

    @property
    def costs(self) -> RoundCosts:
        """Of the rounds, as they were measured."""
        return self._chooser.costs

    def begin(self, prompt_tokens: int) -> None:
        """A new text, of which the drafter was shown the prompt."""
        self._tell()
        self._chooser.begin()
        self.backlog.clear()
        self._position = prompt_tokens
        self._pending, self._run_left = [], 0

    def settle(self) -> None:
        """Let the drafter catch up, so that other rounds than these may go on with the text."""
        self._tell()
        if self._pending:
            self.backlog.catch_up(self._position, self._pending)
        self._pending, self._run_left = [], 0

    def choose(self, left: int) -> Round:
        """The next round, with `left` tokens to go."""
        if not self._run_left or left <= self._run.chain_len:
            self._tell()
            self._next_run(left)
        self._started = time.perf_counter()
        return self._run

    def observe(self, round_: Round, accepted: int, run: Sequence[int]) -> None:
        """What came of it: drafts accepted, and the tokens before the text's end."""
        self._seconds += time.perf_counter() - self._started
        self._played.append((min(accepted, len(run)), len(run)))
        self._run_left -= 1
        if round_.chain_len:
            self._position += accepted + 1
        else:
            self._pending += run

    def _tell(self) -> None:
        """What came of the run."""
        if self._played:
            place = self._position + len(self._pending)
            self._chooser.observe(self._run.chain_len, self._played, place, self._seconds)
        self._played, self._seconds = [], 0.0

    def _next_run(self, left: int) -> None:
        place = self._position + len(self._pending)
        if self._pending and not self._caught_up(place):
            chain_len, count = 0, PLAIN_RUN
        else:
            chain_len, count = self._chooser.choose(left, place)
        if not chain_len:
            count = min(count, self.backlog.capacity - len(self._pending))
        self._run, self._run_left = self.rounds[chain_len], count

    def _caught_up(self, place: int) -> bool:
        """Whether the drafter has now seen all tokens before `place`."""
        looks = self._chooser.wants_to_look(len(self._pending), place)
        if looks:
            expected = self.backlog.catch_up(self._position, self._pending)
            self._chooser.observe_look(expected, place)
        elif len(self._pending) == self.backlog.capacity:
            self.backlog.clear()
            self._chooser.skip_plain()
        else:
            return False
        self._position, self._pending = place, []
        return looks
