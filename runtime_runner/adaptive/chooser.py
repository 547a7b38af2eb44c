"""Which shape of draft decodes fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from eagle_aot.runtime_runner.adaptive.acceptance import AcceptanceEstimator, RoundSample
from eagle_aot.runtime_runner.adaptive.costs import CostTable
from eagle_aot.runtime_runner.adaptive.survival import SurvivalEstimator
from eagle_aot.runtime_runner.decode.shape import PLAIN, Shape

LOSS_SHARE = 0.006  # of the time of plain decoding, that may be lost against it
INITIAL_BALANCE = 6.0  # plain rounds that may be lost before any was won
MAX_BALANCE = 16.0  # plain rounds that were won and may be lost again
MARGIN = 1.01  # how many times as fast another shape must be
RUN, PLAIN_RUN = 4, 16  # rounds of one shape at a time, since choosing takes time as well


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOptions:
    """What may be chosen for a batch: one of `shapes`.

    The first one is the smallest, and contains the drafts of all requests without automatic drafts.
    The other requests, a `share` of all, take every draft; the longest of them has
    `remaining_tokens` left.
    """

    shapes: tuple[Shape, ...]
    batch_size: int
    remaining_tokens: int
    share: float


class Chooser:
    """Chooses the shape with the most expected tokens per second.

    For a request that runs alone it keeps an account, in plain rounds, of what drafting won and
    lost against plain decoding, and chooses nothing that might lose more than the account has. So
    decoding never loses more than `LOSS_SHARE` of the time of plain decoding and `INITIAL_BALANCE`
    plain rounds, all requests together.
    """

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.acceptance, self.survival = AcceptanceEstimator(), SurvivalEstimator()
        self.balance = INITIAL_BALANCE
        self._current = PLAIN

    def choose_run(
        self, shapes: Sequence[Shape], position: int, remaining_tokens: int, pending: float = 0.0
    ) -> tuple[Shape, int]:
        """Choose a shape, and for how many rounds, for a request that runs alone.

        `pending` plain rounds may be lost by a round that is still running.
        """
        balance = max(self.balance - pending, 0.0)
        if self.costs.wants_plain() and self.costs.catch_up_price(RUN, position) <= balance:
            return PLAIN, RUN
        seconds = self.costs.seconds(shapes, position)
        losses = {shape: seconds[shape] / seconds[PLAIN] - 1 for shape in shapes}
        affordable = {s: seconds[s] for s in shapes if losses[s] <= balance}
        shape = self._fastest(affordable, remaining_tokens)
        if not shape.nodes:
            return PLAIN, PLAIN_RUN
        loss = losses[shape]
        return shape, RUN if loss * RUN <= balance else max(1, int(balance / loss))

    def choose_for_batch(self, options: BatchOptions) -> Shape:
        """Choose a shape for a batch."""
        smallest, *larger = options.shapes
        seconds = self.costs.seconds(options.shapes, batch_size=options.batch_size)
        if smallest not in seconds or not larger:
            return smallest
        if not smallest.nodes and self.costs.wants_plain(options.batch_size):
            return smallest
        if self.costs.wants_drafts():
            return larger[0]
        shared = self.survival.tokens(list(seconds), options.remaining_tokens)
        return self._fastest(seconds, options.remaining_tokens, options.share, shared)

    def add(
        self,
        shape: Shape,
        samples: Sequence[RoundSample],
        seconds: Sequence[float],
        position: int = 0,
        batch_size: int = 1,
    ) -> None:
        """Learn from consecutive rounds of a shape and what they took, as far as it is known."""
        for sample in samples:
            self.acceptance.add(shape, sample)
        if shape.nodes and batch_size > 1:
            self.survival.add(samples)
        self.costs.add(shape, seconds, position, batch_size)

    def record(self, tokens: int, price: float) -> None:
        """Enter what was emitted, and what it cost in plain rounds, into the account."""
        balance = self.balance + tokens - (1 - LOSS_SHARE) * price
        self.balance = min(balance, MAX_BALANCE)

    def can_afford(self, loss: float) -> bool:
        """Whether the account has so many plain rounds."""
        return loss <= max(self.balance, 0.0)

    def _fastest(
        self,
        seconds: dict[Shape, float],
        remaining_tokens: int,
        share: float = 1.0,
        shared: Mapping[Shape, float] = MappingProxyType({}),
    ) -> Shape:
        """Return the shape with the most tokens per second; `shared` has those of some shapes."""
        tokens = {**self.acceptance.tokens(list(seconds), remaining_tokens), **shared}
        speeds = {s: (share * tokens[s] + 1 - share) / seconds[s] for s in seconds}
        fastest = max(speeds, key=speeds.__getitem__)
        if speeds[fastest] > MARGIN * speeds.get(self._current, 0.0):
            self._current = fastest
        return self._current
