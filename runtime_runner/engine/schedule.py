"""Which round comes next for the texts that run."""

from collections.abc import Callable, Sequence
from typing import Protocol

from eagle_aot.runtime_runner.adaptive.batch import BatchChainLength
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.text import Text
from eagle_aot.runtime_runner.rounds.round import Drafter, Round, Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.target import Target

Found = Sequence[tuple[int, Sequence[int]]]
"""Of each text of a round: drafts accepted, and the tokens before its end."""


class Schedule(Protocol):
    """Hands out rounds. Those over the first sequences of `running` continue their texts."""

    @property
    def target(self) -> Target:
        """What all rounds verify with."""

    @property
    def drafter(self) -> Drafter | None:
        """Who is shown prompts."""

    @property
    def running(self) -> Running:
        """All sequences."""

    def join(self, texts: Sequence[Text]) -> None:
        """The last of the texts that run has just joined the others."""

    def choose(self, texts: Sequence[Text]) -> Round:
        """The next round of at least one text."""

    def observe(self, round_: Round, found: Found, seconds: float) -> None:
        """What came of it."""


class OneRound:
    """The same one for one text, over and over."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self.target, self.drafter, self.running = round_.target, round_.drafter, round_.running

    def join(self, texts: Sequence[Text]) -> None:
        """It is the one."""

    def choose(self, texts: Sequence[Text]) -> Round:
        return self._round

    def observe(self, round_: Round, found: Found, seconds: float) -> None:
        """Nothing is learned."""


class SharedRounds:
    """For any number of texts, each with as many drafts as it wants, or as pay.

    A text that is alone from its first round on has a chooser of its own, which may leave the
    drafter out of plain rounds; beside others the drafter is shown every round.
    """

    def __init__(self, rounds: Rounds, alone: Callable[[], AdaptiveSchedule]) -> None:
        """`alone` gives the chooser of a text that has nobody beside it."""
        self._rounds, self._make_alone = rounds, alone
        self.target, self.drafter, self.running = rounds.target, rounds.drafter, rounds.running
        self._together = BatchChainLength()
        self._alone: AdaptiveSchedule | None = None
        self._chosen = False  # the round that is played, for all together

    def join(self, texts: Sequence[Text]) -> None:
        if self._alone is not None and len(texts) > 1:
            self._alone.settle()
        self._alone = None
        text = texts[-1]
        if len(texts) == 1 and text.request.shape is None:
            self._alone = self._make_alone()
            self._alone.begin(len(text.request.prompt))

    def choose(self, texts: Sequence[Text]) -> Round:
        if self._alone is not None:
            return self._alone.choose(texts[0].room)
        wanted = [text.request.shape for text in texts]
        fixed = Shape.covering([Shape.chain(0), *filter(None, wanted)])
        self._chosen = None in wanted and fixed.is_chain
        if not self._chosen:
            return self._rounds.of(len(texts), fixed)
        longest = min(self._rounds.longest_chain(len(texts)), max(text.room for text in texts) - 1)
        free = wanted.count(None) / len(texts)
        places = self._rounds.places(len(texts))
        chosen = self._together.choose(places, free, fixed.depth, max(longest, 0))
        return self._rounds.of(len(texts), Shape.chain(chosen), observed=True)

    def observe(self, round_: Round, found: Found, seconds: float) -> None:
        if self._alone is not None:
            ((accepted, run),) = found
            self._alone.observe(round_, accepted, run)
        elif self._chosen:  # all else would be work behind every round, for nobody
            played = [(accepted, len(run)) for accepted, run in found]
            self._together.observe(len(round_.running), round_.chain_len, played, seconds)
