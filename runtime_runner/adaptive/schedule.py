"""Which round comes next for a request that runs alone with automatic drafts."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from eagle_aot.runtime_runner.adaptive.acceptance import RoundSample
from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import PLAIN_RUN, Chooser
from eagle_aot.runtime_runner.decode.round import Outcome, Round
from eagle_aot.runtime_runner.decode.shape import PLAIN, Shape


class AdaptiveSchedule:
    """Chooses among rounds of several shapes over one sequence.

    Rounds are chosen in runs of one shape, and results are only learned between runs: choosing
    after each forward costs a small model more than it wins. Plain rounds leave the drafter out.
    After 16, 32, 64 and 128 of them it catches up in one forward, if the chooser's account covers
    that, and whether it would have drafted their tokens shows whether drafts are worthwhile again.
    """

    def __init__(self, rounds: Iterable[Round], backlog: Backlog, chooser: Chooser) -> None:
        """`rounds` are one of each shape; the drafter of the plain one is `backlog`."""
        self.rounds = {round_.shape: round_ for round_ in rounds}
        self.backlog, self.chooser = backlog, chooser
        self._shapes: Sequence[Shape] = list(self.rounds)
        self._longest = max((s for s in self.rounds if s.is_chain), key=lambda s: s.depth)
        self._position = 0  # of the first token that the drafter has not observed
        self._pending: list[int] = []  # plain tokens from there up to the bonus token
        self._skipped: int | None = None  # the first token that the drafter will never observe
        self._run, self._run_left = PLAIN, 0  # the current run's shape and remaining rounds
        self._planned: tuple[Shape, int] | None = None  # the next run
        self._catch_up_after = PLAIN_RUN  # plain tokens
        self._unlearned: list[tuple[Shape, RoundSample, float | None]] = []  # rounds and seconds

    def begin(
        self, position: int, first_unobserved_row: int | None = None, *, trees: bool = True
    ) -> None:
        """Begin a request with the bonus token at `position`. The drafter has observed all tokens
        before it, except from `first_unobserved_row` on. Trees are only chosen with `trees`."""
        self._learn()
        self.chooser.acceptance.begin_request()
        self.backlog.clear()
        self._shapes = [shape for shape in self.rounds if trees or shape.is_chain]
        self._position, self._pending, self._skipped = position, [], first_unobserved_row
        self._run_left, self._planned, self._catch_up_after = 0, None, PLAIN_RUN

    @property
    def first_unobserved_row(self) -> int | None:
        """The position of the first token that the drafter has not observed so far, None if it has
        observed all."""
        return self._position if self._skipped is None and self._pending else self._skipped

    def settle(self) -> None:
        """Let the drafter catch up, so that rounds of a batch may continue the request."""
        self._learn()
        if self._pending:
            self._catch_up()
        self._run_left, self._planned = 0, None

    def choose(self, remaining_tokens: int) -> Round:
        """Return the next round."""
        if not self._run_left or remaining_tokens <= self._run.depth:
            self._run, self._run_left = self._next_run(remaining_tokens)
            self._planned = None
        return self.rounds[self._run]

    def plan_next(self, remaining_tokens: int) -> None:
        """Choose the next run while the last round of a run with drafts is in flight, which was
        chosen with so many tokens remaining."""
        if self._run_left == 1 and self._run.nodes:
            self._learn()
            pending = max(self.chooser.costs.price(self._run, self._position) - 1, 0.0)
            args = self._shapes, self._position, remaining_tokens - 1
            self._planned = self.chooser.choose_run(*args, pending)

    def observe(
        self, round_: Round, outcome: Outcome, tokens: Sequence[int], seconds: float | None
    ) -> None:
        """Add the outcome of a round, its tokens before the end of the request, and its seconds,
        None if it was recorded at the same time."""
        self._unlearned.append((round_.shape, RoundSample.of(outcome, len(tokens)), seconds))
        self._run_left -= 1
        if round_.shape.nodes:
            self._position += outcome.accepted + 1
        else:
            self._pending += tokens

    def _learn(self) -> None:
        position = self._position + len(self._pending)
        for shape, rounds in groupby(self._unlearned, key=itemgetter(0)):
            _, samples, times = zip(*rounds, strict=True)
            seconds = [time for time in times if time is not None]
            self.chooser.add(shape, samples, seconds, position)
            tokens = sum(sample.emitted for sample in samples)
            self.chooser.record(tokens, len(samples) * self.chooser.costs.price(shape, position))
        self._unlearned = []

    def _next_run(self, remaining_tokens: int) -> tuple[Shape, int]:
        if self._planned and self._planned[0].depth < remaining_tokens:
            return self._planned
        self._learn()
        shape, rounds = PLAIN, PLAIN_RUN
        if not self._pending or self._catches_up():
            position = self._position
            shape, rounds = self.chooser.choose_run(self._shapes, position, remaining_tokens)
        if not shape.nodes:
            rounds = min(rounds, self.backlog.capacity - len(self._pending))
        return shape, rounds

    def _catches_up(self) -> bool:
        """Let the drafter catch up if that is due and affordable. Returns whether it has."""
        rows, position = len(self._pending), self._position + len(self._pending)
        costs = self.chooser.costs
        price = costs.catch_up_price(rows, position)
        trial = costs.price(self._longest, position) - 1
        after_drafts = rows < min(PLAIN_RUN, self.backlog.capacity)
        due = after_drafts or rows >= min(self._catch_up_after, self.backlog.capacity)
        if after_drafts or (due and self.chooser.can_afford(price + trial)):
            self.chooser.record(0, price)
            self.chooser.acceptance.add_predictions(self._catch_up())
            if not after_drafts:
                self._catch_up_after *= 2
            return True
        if rows == self.backlog.capacity:  # too many to afford
            self.backlog.clear()
            self._skipped = self._position if self._skipped is None else self._skipped
            self._position, self._pending = position, []
            self._catch_up_after = PLAIN_RUN
        return False

    def _catch_up(self) -> list[bool]:
        correct = self.backlog.catch_up(self._position, self._pending)
        self._position, self._pending = self._position + len(self._pending), []
        return correct
