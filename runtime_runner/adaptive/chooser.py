"""What the next round should draft."""

from collections.abc import Mapping, Sequence

from eagle_aot.runtime_runner.adaptive.acceptance.estimate import runs
from eagle_aot.runtime_runner.adaptive.acceptance.expected import Expected, ExpectedTokens
from eagle_aot.runtime_runner.adaptive.costs.drift import Drift
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.shape import Shape

SHARE = 0.006  # of the time, that looking for something better than plain decoding may cost
START = 6.0  # plain rounds, that it may cost before any was earned
MOST = 16.0  # plain rounds, that what was won before may be lost again
MARGIN = 1.01  # by which another shape must be faster before it is taken
RUN = 4  # rounds with drafts that are chosen at once: choosing takes time as well
PLAIN_RUN = 16  # plain ones
LONG = 4e-3  # seconds of a plain round, beside which choosing takes none, nor does asking the head


class Chooser:
    """Chooses the shape with the most tokens per second: plain decoding, a chain or a tree.

    Tokens of a round are estimated from the text, seconds are `costs` and how these drifted, of
    which its rounds tell, and a plain one among those with drafts now and then. An account in plain
    rounds keeps what drafting wins over plain decoding and loses against it. What it does not cover
    is not tried, so after n tokens decoding is never behind plain decoding by more than SHARE of
    the time and START plain rounds.

    Where rounds are long, each with drafts is chosen for itself, by what the drafter expects next.

    While decoding plainly the head sees nothing; now and then it catches up on the plain tokens,
    and its guesses at them say whether drafts are worth while again.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self._expected = ExpectedTokens(costs.longest.depth)
        self._drift = Drift()
        self._account = START
        self._current = costs.longest
        self._look = PLAIN_RUN
        self._look_at_once = False
        self._spare = START  # of the account, for what is chosen
        self._prices: Mapping[Shape, float] = {}  # of the shapes that may be chosen
        self._of_each: Mapping[Shape, Expected] = {}
        self._singly = costs.seconds(PLAIN, costs.positions[0]) >= LONG

    def begin(self) -> None:
        """A new text, of which nothing is known but what texts usually were like."""
        self._expected.begin()
        self._look = PLAIN_RUN

    def choose(
        self, left: int, position: int, next_token_probs: NextTokenProbs | None = None
    ) -> tuple[Shape, int]:
        """The shape, and of how many rounds, at `position` with `left` tokens to go, where the head
        has caught up; `next_token_probs` is what it expects there, where that is known."""
        self.plan_next(left, position)
        return self.decide(next_token_probs)

    def plan_next(self, left: int, position: int, under_way: Shape | None = None) -> None:
        """What is left of `choose` behind it is `decide`: this may be done while a round is
        `under_way`, of which `observe` will tell later."""
        lost = self._price(under_way, position) - 1 if under_way else 0.0  # at most
        self._spare = max(self._account - lost, 0.0)
        self._look_at_once = self._drift.wants_plain
        if self._look_at_once:
            return
        prices = self.costs.prices(position)
        now = {shape: price * self._drift.of(shape) for shape, price in prices.items()}
        self._prices = {s: price for s, price in now.items() if price - 1 <= self._spare}
        self._of_each = self._expected.of(self._prices, max(left, 1))
        speeds = {s: self._of_each[s].tokens / price for s, price in self._prices.items()}
        best = max(speeds, key=speeds.__getitem__)
        if speeds[best] > MARGIN * speeds.get(self._current, 0.0):
            self._current = best

    def decide(self, next_token_probs: NextTokenProbs | None) -> tuple[Shape, int]:
        """What `choose` returns."""
        if self._look_at_once:
            return PLAIN, 1
        if not self._current.nodes:
            return PLAIN, PLAIN_RUN
        if not self._singly or next_token_probs is None:
            return self._current, self._run(self._prices[self._current] - 1)
        chances = self._expected.chances(next_token_probs)

        def speed(shape: Shape) -> float:
            return self._of_each[shape].given(chances, shape.topk).tokens / self._prices[shape]

        # Not plain decoding: that is for a run, of which little is known.
        return max((shape for shape in self._prices if shape.nodes), key=speed), 1

    def _run(self, loss: float) -> int:
        """How many rounds, of which each may lose as much, the account covers."""
        return RUN if loss * RUN <= self._spare else max(1, int(self._spare / loss))

    def observe(
        self, shape: Shape, played: Sequence[Played], position: int, seconds: float | None
    ) -> None:
        """A run of rounds up to `position`, which took `seconds` each, None where nobody knows."""
        rounds = len(played)
        if seconds is not None:
            measured = self.costs.seconds(shape, position)
            self._drift.add(shape, rounds, seconds, measured)
        tokens = sum(round_.emitted for round_ in played)
        self._book(tokens, rounds * self._price(shape, position))
        for round_ in played:
            self._expected.add(shape, round_)

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
        for reached, accepted in runs(expected, self.costs.longest.depth):
            self._expected.add_chain(reached, accepted)
        if not self._look_at_once:
            self._look *= 2

    def skip_plain(self) -> None:
        """As many plain tokens as are kept were too many to catch up on; look at fewer."""
        self._look = PLAIN_RUN

    def _price(self, shape: Shape, position: int) -> float:
        """Of a round, in plain rounds, as things are now."""
        return self.costs.price(shape, position) * self._drift.of(shape)

    def _covers(self, loss: float) -> bool:
        return loss <= max(self._account, 0)

    def _book(self, tokens: int, price: float) -> None:
        self._account = min(MOST, self._account + tokens - (1 - SHARE) * price)
