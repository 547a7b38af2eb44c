"""Chooses the next round of the running requests."""

from collections.abc import Callable, Sequence
from typing import Protocol

from eagle_aot.runtime_runner.adaptive.acceptance import RoundSample
from eagle_aot.runtime_runner.adaptive.chooser import BatchOptions, Chooser
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Drafter, Outcome, Round
from eagle_aot.runtime_runner.decode.shape import AUTO, MAX_AUTO_DEPTH, PLAIN, Shape, auto_shapes
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.running_request import RunningRequest

RoundResults = Sequence[tuple[Outcome, Sequence[int]]]
"""For each request of a round: the outcome, and its tokens up to the end of the request."""


class Schedule(Protocol):
    """Chooses the rounds of the running requests, which have the first sequences of `batch`."""

    @property
    def target(self) -> Target:
        """The target that all rounds verify with."""

    @property
    def drafter(self) -> Drafter | None:
        """The drafter that observes prompts."""

    @property
    def batch(self) -> BatchState:
        """All sequences."""

    @property
    def recordings(self) -> int:
        """The number of rounds that have been recorded so far."""

    def choose(self, requests: Sequence[RunningRequest]) -> Round:
        """Return the next round of at least one request."""

    def plan_next(self, requests: Sequence[RunningRequest]) -> None:
        """Prepare the choice after this round, which is in flight on another device."""

    def observe(self, round_: Round, results: RoundResults, seconds: float | None) -> None:
        """Add a round's results and its seconds, None if it was recorded at the same time."""


class OneRound:
    """Runs the same round for one request; measurements and tests use it."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self.target, self.drafter, self.batch = round_.target, round_.drafter, round_.batch
        self.recordings = 0

    def choose(self, requests: Sequence[RunningRequest]) -> Round:
        return self._round

    def plan_next(self, requests: Sequence[RunningRequest]) -> None:
        """There is nothing to choose."""

    def observe(self, round_: Round, results: RoundResults, seconds: float | None) -> None:
        """There is nothing to learn."""


class BatchSchedule:
    """Chooses rounds for any number of requests: the drafts that they request, or the fastest.

    A request with automatic drafts that runs alone has an `AdaptiveSchedule`, which may leave the
    drafter out of plain rounds. In a batch the drafter observes every round.
    """

    def __init__(
        self, rounds: Rounds, chooser: Chooser, alone: Callable[[bool], AdaptiveSchedule]
    ) -> None:
        """`alone` returns the schedule of a request that runs alone, with trees or without them."""
        self._rounds, self._chooser, self._make_alone = rounds, chooser, alone
        self.target, self.drafter, self.batch = rounds.target, rounds.drafter, rounds.batch
        self._alone: tuple[RunningRequest, AdaptiveSchedule] | None = None
        self._options: BatchOptions | None = None  # for the current round, unless it is fixed
        self._planned: tuple[BatchOptions, Shape] | None = None  # for the next round
        self._requests: Sequence[RunningRequest] = ()  # of the current round
        self._unlearned: list[tuple[int, Shape, list[RoundSample], float | None]] = []

    @property
    def recordings(self) -> int:
        return self._rounds.recordings

    def choose(self, requests: Sequence[RunningRequest]) -> Round:
        alone = self._adaptive_schedule(requests)
        if alone is not None:
            round_ = alone.choose(requests[0].tokens_left)
            # Changed if the drafter has caught up.
            requests[0].first_unobserved_row = alone.first_unobserved_row
            return round_
        self._requests, self._options = requests, self._batch_options(requests)
        if self._options is None:
            return self._rounds.get_round(len(requests), self._fixed_shape(requests))
        planned, self._planned = self._planned, None
        matches = planned is not None and planned[0] == self._options
        shape = planned[1] if planned and matches else self._choose_shape(self._options)
        return self._rounds.get_round(len(requests), shape, observed=True)

    def plan_next(self, requests: Sequence[RunningRequest]) -> None:
        if self._alone is not None:
            self._alone[1].plan_next(requests[0].tokens_left)
        elif self._options is not None:
            self._planned = self._options, self._choose_shape(self._options)

    def observe(self, round_: Round, results: RoundResults, seconds: float | None) -> None:
        if self._alone is not None:
            ((outcome, tokens),) = results
            self._alone[1].observe(round_, outcome, tokens, seconds)
        elif self._options is not None:
            samples = [
                RoundSample.of(outcome, len(tokens))
                for request, (outcome, tokens) in zip(self._requests, results, strict=True)
                if takes_all(request, round_.shape)
            ]
            self._unlearned.append((len(round_.batch), round_.shape, samples, seconds))

    def _adaptive_schedule(self, requests: Sequence[RunningRequest]) -> AdaptiveSchedule | None:
        """Return the schedule of a request with automatic drafts that runs alone."""
        first = requests[0]
        runs_alone = len(requests) == 1 and first.request.shape is None
        if self._alone is not None and (not runs_alone or self._alone[0] is not first):
            request, schedule = self._alone
            self._alone = None
            if request in requests:
                schedule.settle()
                request.first_unobserved_row = schedule.first_unobserved_row
        if runs_alone and self._alone is None:
            trees = first.request.tree == AUTO
            self._alone = first, self._make_alone(trees)
            self._alone[1].begin(first.position, first.first_unobserved_row, trees=trees)
        return None if self._alone is None else self._alone[1]

    def _fixed_shape(self, requests: Sequence[RunningRequest]) -> Shape:
        """Return the drafts that cover those of the requests without automatic drafts."""
        shapes = (request.request.shape for request in requests)
        return Shape.covering(frozenset((PLAIN, *filter(None, shapes))))

    def _batch_options(self, requests: Sequence[RunningRequest]) -> BatchOptions | None:
        """Return what may be chosen for a batch, None if its round is fixed. Trees are only chosen
        if no request has fixed drafts."""
        automatic = [request for request in requests if request.request.shape is None]
        fixed = self._rounds.fitting(len(requests), self._fixed_shape(requests))
        if not automatic or not fixed.is_chain:
            return None
        trees = not fixed.nodes and any(r.request.tree == AUTO for r in automatic)
        shapes = [self._rounds.fitting(len(requests), shape) for shape in auto_shapes(trees)]
        larger = (shape for shape in shapes if shape.depth > fixed.depth)
        return BatchOptions(
            shapes=tuple(dict.fromkeys((fixed, *larger))),
            batch_size=self._rounds.batch_size(len(requests)),
            remaining_tokens=min(
                max(request.tokens_left for request in requests), MAX_AUTO_DEPTH + 1
            ),
            share=len(automatic) / len(requests),
        )

    def _choose_shape(self, options: BatchOptions) -> Shape:
        for batch_size, shape, samples, seconds in self._unlearned:
            times = [] if seconds is None else [seconds]
            self._chooser.add(shape, samples, times, batch_size=batch_size)
        self._unlearned = []
        return self._chooser.choose_for_batch(options)


def takes_all(request: RunningRequest, shape: Shape) -> bool:
    """Whether a request takes all drafts of a round that was chosen for a batch."""
    return request.request.shape is None and (shape.is_chain or request.request.tree == AUTO)
