"""Which round comes next for the texts that run."""

from collections.abc import Callable, Sequence
from typing import Protocol

from eagle_aot.runtime_runner.adaptive.batch import LENGTHS, BatchChooser
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.adaptive.shapes import AUTO_TREE, PLAIN, TREES
from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.round import BatchState, Drafter, Outcome, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.engine.request import RequestId
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.running_request import RunningRequest

Found = Sequence[tuple[Outcome, Sequence[int]]]
"""Of each text of a round, and the tokens of it before the text's end."""

Among = tuple[int, float, Shape, tuple[Shape, ...]]
"""What a `BatchChooser` is asked."""


class Schedule(Protocol):
    """Hands out rounds. Those over the first sequences of `running` continue their texts."""

    @property
    def target(self) -> Target:
        """What all rounds verify with."""

    @property
    def drafter(self) -> Drafter | None:
        """Who is shown prompts."""

    @property
    def running(self) -> BatchState:
        """All sequences."""

    @property
    def recordings(self) -> int:
        """How many rounds have ever been recorded."""

    def join(self, texts: Sequence[RunningRequest]) -> None:
        """The last of the texts that run has just joined the others."""

    def choose(self, texts: Sequence[RunningRequest]) -> Round:
        """The next round of at least one text."""

    def plan_next(self, texts: Sequence[RunningRequest]) -> None:
        """The round that was chosen for these is under way elsewhere: there is time to spare."""

    def observe(self, round_: Round, found: Found, seconds: float | None) -> None:
        """What came of it, in so many seconds; None where it was recorded meanwhile."""


class OneRound:
    """The same one for one text, over and over."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self.target, self.drafter, self.running = round_.target, round_.drafter, round_.running
        self.recordings = 0

    def join(self, texts: Sequence[RunningRequest]) -> None:
        """It is the one."""

    def choose(self, texts: Sequence[RunningRequest]) -> Round:
        return self._round

    def plan_next(self, texts: Sequence[RunningRequest]) -> None:
        """About nothing."""

    def observe(self, round_: Round, found: Found, seconds: float | None) -> None:
        """Nothing is learned."""


class SharedRounds:
    """For any number of texts, each with as many drafts as it wants, or as pay.

    A text that is alone from its first round on has a chooser of its own, which may leave the
    drafter out of plain rounds; beside others the drafter is shown every round.
    """

    def __init__(self, rounds: Rounds, alone: Callable[[bool], AdaptiveSchedule]) -> None:
        """`alone` gives the chooser of a text that has nobody beside it, with trees or without."""
        self._rounds, self._make_alone = rounds, alone
        self.target, self.drafter, self.running = rounds.target, rounds.drafter, rounds.running
        self._together = BatchChooser()
        self._asked: Among | None = None  # of it, for the round
        self._thought: tuple[Among, Shape] | None = None  # what it would say to the same again
        self._untold: list[tuple[int, Shape, list[Played], float | None]] = []  # rounds
        self._alone: AdaptiveSchedule | None = None
        self._texts: Sequence[
            RunningRequest
        ] = ()  # of the round, where it is chosen for all together
        self._outlooks: dict[RequestId, NextTokenProbs | None] = {}  # behind them

    @property
    def recordings(self) -> int:
        return self._rounds.recordings

    def join(self, texts: Sequence[RunningRequest]) -> None:
        if self._alone is not None and len(texts) > 1:
            self._alone.settle()
            texts[0].missed = self._alone.missed
        self._alone = None
        text = texts[-1]
        if len(texts) == 1 and text.request.shape is None:
            self._alone = self._make_alone(text.request.tree == AUTO_TREE)
            self._alone.begin(len(text.request.prompt))

    def choose(self, texts: Sequence[RunningRequest]) -> Round:
        if self._alone is not None:
            round_ = self._alone.choose(texts[0].tokens_left)
            texts[0].missed = self._alone.missed  # of which it may just have been shown more
            return round_
        wanted = [text.request.shape for text in texts]
        fixed = Shape.covering(frozenset((PLAIN, *filter(None, wanted))))
        self._texts = texts if None in wanted and fixed.is_chain else ()
        if not self._texts:
            self._asked = None
            return self._rounds.of(len(texts), fixed)
        free = wanted.count(None) / len(texts)
        places, fixed = self._rounds.batch_size(len(texts)), self._rounds.fitting(len(texts), fixed)
        asked = self._asked = places, free, fixed, self._more(texts, fixed)
        thought, self._thought = self._thought, None
        chosen = thought[1] if thought and thought[0] == asked else self._chosen(asked)
        next_token_probs = any(text.request.tree == AUTO_TREE for text in texts)
        return self._rounds.of(len(texts), chosen, observed=True, next_token_probs=next_token_probs)

    def plan_next(self, texts: Sequence[RunningRequest]) -> None:
        if self._alone is not None:
            self._alone.plan_next(texts[0].tokens_left)
        elif self._asked:
            self._thought = self._asked, self._chosen(self._asked)

    def observe(self, round_: Round, found: Found, seconds: float | None) -> None:
        if self._alone is not None:
            ((outcome, run),) = found
            self._alone.observe(round_, outcome, run, timed=seconds is not None)
        elif self._texts:  # all else would be work behind every round, for nobody
            played = [
                Played.of(outcome, run, self._outlooks.get(text.number))
                for text, (outcome, run) in zip(self._texts, found, strict=True)
                if learns(text, round_.shape)
            ]
            self._outlooks = {
                text.number: outcome.next_token_probs
                for text, (outcome, _) in zip(self._texts, found, strict=True)
            }
            self._untold.append((len(round_.running), round_.shape, played, seconds))

    def _chosen(self, asked: Among) -> Shape:
        """By all that came of rounds so far."""
        for round_ in self._untold:
            self._together.observe(*round_)
        self._untold = []
        return self._together.choose(*asked)

    def _more(self, texts: Sequence[RunningRequest], fixed: Shape) -> tuple[Shape, ...]:
        """What may be drafted beyond what was asked for, by depth and nodes: trees where nobody
        asked for drafts."""
        longest = max(text.tokens_left for text in texts) - 1
        shapes = list(map(Shape.chain, LENGTHS))
        if not fixed.nodes and any(text.request.tree == AUTO_TREE for text in texts):
            shapes += TREES
        fitting = dict.fromkeys(self._rounds.fitting(len(texts), shape) for shape in shapes)
        return tuple(shape for shape in fitting if fixed.depth < shape.depth <= longest)


def learns(text: RunningRequest, shape: Shape) -> bool:
    """Whether the text was drafted all of a round that was chosen for those who take what pays."""
    request = text.request
    return request.shape is None and (shape.is_chain or request.tree == AUTO_TREE)
