"""How many drafts the next round should have."""

from collections.abc import Sequence
from typing import Final, Literal

from eagle_aot.runtime_runner.adaptive.drift import Drift
from eagle_aot.runtime_runner.adaptive.estimate import AcceptanceEstimate, runs
from eagle_aot.runtime_runner.adaptive.round_costs import RoundCosts

AUTO_LENGTH: Final = "auto"
ChainLen = int | Literal["auto"]

SHARE = 0.006  # of the time, that looking for something better than plain decoding may cost
START = 6.0  # plain rounds, that it may cost before any was earned
MOST = 16.0  # plain rounds, that what was won before may be lost again
MARGIN = 1.01  # by which another chain length must be faster before it is taken
RUN = 4  # rounds with drafts that are chosen at once: choosing takes time as well
PLAIN_RUN = 16  # plain ones


class ChainLength:
    """Chooses the chain length with the most tokens per second, from 0, plain decoding, on.

    Tokens of a round are estimated from the text, seconds are `costs` and how these drifted, of
    which a plain round among those with drafts now and then tells. An account in plain rounds
    keeps what drafting wins over plain decoding and loses against it. What it does not cover is not
    tried, so after n tokens decoding is never behind plain decoding by more than SHARE of the time
    and START plain rounds.

    While decoding plainly the head sees nothing; now and then it catches up on the plain tokens,
    and its guesses at them say whether drafts are worth while again.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self._estimate = AcceptanceEstimate(costs.longest)
        self._drift = Drift()
        self._account = START
        self._current = costs.longest
        self._look = PLAIN_RUN
        self._look_at_once = False
        self._factor = 1.0  # of the drift

    def begin(self) -> None:
        """A new text, of which nothing is known but what texts usually were like."""
        self._estimate.begin()
        self._look = PLAIN_RUN

    def choose(self, left: int, position: int) -> tuple[int, int]:
        """The chain length, and of how many rounds, at `position` with `left` tokens to go, where
        the head has caught up."""
        self._look_at_once = self._drift.wants_plain
        if self._look_at_once:
            return 0, 1
        self._factor = self._drift.factor
        longest = min(self.costs.longest, left - 1)
        prices = {k: self._price(k, position) for k in range(longest + 1)}
        tokens = self._estimate.tokens()
        speeds = {k: tokens[k] / price for k, price in prices.items() if self._covers(price - 1)}
        best = max(speeds, key=speeds.__getitem__)
        if speeds[best] > MARGIN * speeds.get(self._current, 0.0):
            self._current = best
        return self._current, self._run(prices[self._current] - 1)

    def _run(self, loss: float) -> int:
        """How many rounds, of which each may lose as much, the account covers."""
        if not self._current:
            return PLAIN_RUN
        return RUN if self._covers(loss * RUN) else max(1, int(self._account / loss))

    def observe(
        self, chain_len: int, played: Sequence[tuple[int, int]], position: int, seconds: float
    ) -> None:
        """A run of rounds up to `position`, which took `seconds`: of each, how many of the drafts
        were accepted among how many tokens."""
        rounds = len(played)
        measured = self.costs.seconds(chain_len, position)
        self._drift.add(chain_len > 0, rounds, seconds / rounds, measured)
        tokens = sum(emitted for _, emitted in played)
        self._book(tokens, rounds * self._price(chain_len, position))
        if chain_len:
            for accepted, emitted in played:
                self._estimate.add(min(chain_len, emitted), accepted)

    def wants_to_look(self, pending: int, position: int) -> bool:
        """Whether the head should catch up on `pending` plain tokens now.

        Not unless there is enough left to try what it may find.
        """
        if pending < PLAIN_RUN and not self._look_at_once:
            return False
        price = self.costs.price_of_catching_up(pending, position)
        cheap = price <= SHARE / 2 * pending
        due = cheap or pending >= min(self._look, self.costs.rows)
        trying = self._price(self.costs.longest, position) - 1
        return self._look_at_once or (due and self._covers(price + trying))

    def observe_look(self, expected: Sequence[bool], position: int) -> None:
        """What the head caught up on: whether it would have drafted each of the plain tokens."""
        self._book(0, self.costs.price_of_catching_up(len(expected), position))
        for reached, accepted in runs(expected, self.costs.longest):
            self._estimate.add(reached, accepted)
        if not self._look_at_once:
            self._look *= 2

    def skip_plain(self) -> None:
        """As many plain tokens as are kept were too many to catch up on; look at fewer."""
        self._look = PLAIN_RUN

    def _price(self, chain_len: int, position: int) -> float:
        """Of a round, in plain rounds, as things are now."""
        if not chain_len:
            return 1.0
        return self.costs.price(chain_len, position) * self._factor

    def _covers(self, loss: float) -> bool:
        return loss <= max(self._account, 0)

    def _book(self, tokens: int, price: float) -> None:
        self._account = min(MOST, self._account + tokens - (1 - SHARE) * price)
