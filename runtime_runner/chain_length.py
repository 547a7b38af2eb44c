"""How many drafts the next round should have."""

from collections.abc import Sequence
from typing import Final, Literal

from eagle_aot.runtime_runner.acceptance_estimate import AcceptanceEstimate, runs
from eagle_aot.runtime_runner.drift import Drift
from eagle_aot.runtime_runner.round_costs import RoundCosts

AUTO: Final = "auto"
ChainLen = int | Literal["auto"]

SHARE = 0.006  # of the time, that looking for something better than plain decoding may cost
START = 6.0  # plain rounds, that it may cost before any was earned
MOST = 16.0  # plain rounds, that what was won before may be lost again
MARGIN = 1.01  # by which another chain length must be faster before it is taken
THINK_AGAIN = 4  # rounds: choosing takes time as well
PLAIN_RUN = 16  # plain rounds, after which there is something to think of: it takes time as well


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
        self._kept = THINK_AGAIN  # rounds since the last choice

    def begin(self) -> None:
        """A new text, of which nothing is known but what texts usually were like."""
        self._estimate.begin()
        self._look = PLAIN_RUN
        self._kept = THINK_AGAIN

    def choose(self, left: int, position: int) -> int:
        """For a round at `position` with `left` tokens to go, which the head has caught up with."""
        self._look_at_once = self._drift.wants_plain
        if self._look_at_once:
            return 0
        self._kept += 1
        if self._keeps(left, position):
            return self._current
        self._kept, self._factor = 0, self._drift.factor
        longest = min(self.costs.longest, left - 1)
        prices = {k: self._price(k, position) for k in range(longest + 1)}
        tokens = self._estimate.tokens()
        speeds = {k: tokens[k] / price for k, price in prices.items() if self._covers(price - 1)}
        best = max(speeds, key=speeds.__getitem__)
        if speeds[best] > MARGIN * speeds.get(self._current, 0.0):
            self._current = best
        return self._current

    def observe(
        self, chain_len: int, accepted: int, emitted: int, position: int, seconds: float
    ) -> None:
        """A round of `chain_len` drafts, `accepted` of them among the `emitted` tokens."""
        self._drift.add_drafting(seconds, self.costs.seconds(chain_len, position))
        self._book(emitted, self._price(chain_len, position))
        self._estimate.add(min(chain_len, emitted), accepted)

    def plain_run(self) -> int:
        """How many plain rounds to play before anything is asked again."""
        return 1 if self._look_at_once else PLAIN_RUN

    def observe_plain(self, rounds: int, position: int, seconds: float) -> None:
        """A run of plain rounds, which took `seconds` together."""
        self._drift.add_plain(rounds, seconds / rounds, self.costs.seconds(0, position))
        self._book(rounds, rounds)
        self._kept = THINK_AGAIN

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

    def _keeps(self, left: int, position: int) -> bool:
        """Whether the last choice stands, without thinking."""
        short = self._kept < THINK_AGAIN and left > self._current
        return short and self._covers(self._price(self._current, position) - 1)

    def _price(self, chain_len: int, position: int) -> float:
        """Of a round, in plain rounds, as things are now."""
        if not chain_len:
            return 1.0
        return self.costs.price(chain_len, position) * self._factor

    def _covers(self, loss: float) -> bool:
        return loss <= max(self._account, 0)

    def _book(self, tokens: int, price: float) -> None:
        self._account = min(MOST, self._account + tokens - (1 - SHARE) * price)
