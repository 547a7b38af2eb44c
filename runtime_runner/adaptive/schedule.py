"""Which round of a text comes next: what each drafts."""

import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import PLAIN_RUN, Chooser
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.round import Outcome, Round
from eagle_aot.runtime_runner.decode.shape import Shape


class AdaptiveSchedule:
    """Rounds of every shape over one cursor, and what chooses between them.

    They are chosen in runs, within which nothing is asked: after each forward the host's caches
    hold other things, so that choosing costs a small model more than it wins. Where forwards run
    elsewhere, what follows a run of drafts is thought over while its last round is under way.
    """

    def __init__(self, rounds: Iterable[Round], backlog: Backlog, chooser: Chooser) -> None:
        """One of each shape that `chooser` knows; the plain one's drafter is `backlog`."""
        self.rounds = {round_.shape: round_ for round_ in rounds}
        self.backlog = backlog
        self._chooser = chooser
        self._position = 0  # of the first token that the drafter has not seen
        self._pending: list[int] = []  # plain tokens from there up to the bonus token
        self._skipped: int | None = None  # the first token that the drafter will never see
        self._outlook: NextTokenProbs | None = None  # behind the bonus token
        self._run = self.rounds[PLAIN]
        self._run_left = 0  # rounds
        self._thought = False  # of what follows the run
        self._played: list[tuple[Shape, Played, float | None]] = []
        """Rounds that the chooser was not told of, and seconds where it is known what they took."""
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
        self._pending, self._run_left, self._outlook = [], 0, None
        self._thought, self._skipped = False, None

    @property
    def missed(self) -> int | None:
        """The position of the first token that the drafter was not shown by now, None where it was
        shown all."""
        return self._position if self._skipped is None and self._pending else self._skipped

    def settle(self) -> None:
        """Let the drafter catch up, so that other rounds than these may go on with the text."""
        self._tell()
        if self._pending:
            self.backlog.catch_up(self._position, self._pending)
        self._pending, self._run_left, self._thought = [], 0, False

    def choose(self, left: int) -> Round:
        """The next round, with `left` tokens to go."""
        if not self._run_left or left <= self._run.chain_len:
            self._next_run(left)
        self._started = time.perf_counter()
        return self._run

    def plan_next(self, left: int) -> None:
        """The round that was chosen with `left` tokens to go is under way."""
        if self._run_left == 1 and self._run.shape.nodes:
            self._tell()
            self._chooser.plan_next(left - 1, self._position, self._run.shape)
            self._thought = True

    def observe(
        self, round_: Round, outcome: Outcome, run: Sequence[int], *, timed: bool = True
    ) -> None:
        """What came of it, and the tokens of it before the text's end. It is not `timed` where it
        was recorded meanwhile."""
        seconds = time.perf_counter() - self._started if timed else None
        self._played.append((round_.shape, Played.of(outcome, run, self._outlook), seconds))
        self._outlook = outcome.next_token_probs
        self._run_left -= 1
        if round_.shape.nodes:
            self._position += outcome.accepted + 1
        else:
            self._pending += run

    def _tell(self) -> None:
        """What came of the last rounds."""
        place = self._position + len(self._pending)
        for shape, rounds in groupby(self._played, key=itemgetter(0)):
            _, played, took = zip(*rounds, strict=True)
            known = [seconds for seconds in took if seconds is not None]
            self._chooser.observe(shape, played, place, statistics.fmean(known) if known else None)
        self._played = []

    def _next_run(self, left: int) -> None:
        shape, count = self._thought_of(left) or self._chosen(left)
        if not shape.nodes:
            count = min(count, self.backlog.capacity - len(self._pending))
        self._run, self._run_left, self._thought = self.rounds[shape], count, False

    def _thought_of(self, left: int) -> tuple[Shape, int] | None:
        """What was thought over before, unless its drafts may reach beyond the text: then it counts
        how much is left, which nobody knew."""
        if not self._thought:
            return None
        shape, count = self._chooser.decide(self._outlook)
        return (shape, count) if shape.depth < left else None

    def _chosen(self, left: int) -> tuple[Shape, int]:
        self._tell()
        place = self._position + len(self._pending)
        if self._pending and not self._caught_up(place):
            return PLAIN, PLAIN_RUN
        return self._chooser.choose(left, place, self._outlook)

    def _caught_up(self, place: int) -> bool:
        """Whether the drafter has now seen all tokens before `place`."""
        looks = self._chooser.wants_to_look(len(self._pending), place)
        if looks:
            expected = self.backlog.catch_up(self._position, self._pending)
            self._chooser.observe_look(expected, place)
        elif len(self._pending) == self.backlog.capacity:
            self.backlog.clear()
            self._skipped = self._position if self._skipped is None else self._skipped
            self._chooser.skip_plain()
        else:
            return False
        self._position, self._pending = place, []
        return looks
