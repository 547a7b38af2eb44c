"""Rounds of several drafters, one of which drafts for all texts that run."""

from collections.abc import Callable, Mapping, Sequence

from eagle_aot.runtime_runner.adaptive.drafters import DrafterChooser
from eagle_aot.runtime_runner.engine.schedule import Found, SharedRounds
from eagle_aot.runtime_runner.engine.text import Text
from eagle_aot.runtime_runner.rounds.round import Drafter, Round, Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.target import Target


class ChosenDrafter:
    """Hands out the rounds of the drafter that is chosen before the first of some texts begins;
    who joins them has the same one, and nobody another in the middle of a text.

    So it was shown all of each text that runs, and an idle one has nothing to catch up on.
    """

    def __init__(self, schedules: Mapping[str, SharedRounds]) -> None:
        """By the drafters' names; all over the same sequences."""
        self._schedules = dict(schedules)
        self._chooser = DrafterChooser(list(self._schedules))
        self._played = set[tuple[str, int, Shape]]()
        self.drafts = next(iter(self._schedules))

    @property
    def _now(self) -> SharedRounds:
        return self._schedules[self.drafts]

    @property
    def target(self) -> Target:
        """As the drafter that drafts now sees it."""
        return self._now.target

    @property
    def drafter(self) -> Drafter | None:
        """The one that drafts now."""
        return self._now.drafter

    @property
    def recordings(self) -> int:
        """Of its rounds."""
        return self._now.recordings

    @property
    def running(self) -> Running:
        """All sequences."""
        return self._now.running

    def prepare(self, texts: int, goes_on: Callable[[], bool]) -> bool:
        """A text that goes on from what a cache holds keeps the drafter that was shown it, as long
        as that is the fastest: nobody is tried again for it."""
        places = doublings(texts)
        if self._chooser.settled(places) == self.drafts and goes_on():
            return False
        chosen = self._chooser.choose(places)
        changes = chosen != self.drafts
        self.drafts = chosen
        return changes

    def join(self, texts: Sequence[Text]) -> None:
        """As the drafter's own rounds say."""
        self._now.join(texts)

    def choose(self, texts: Sequence[Text]) -> Round:
        """Of the drafter's own."""
        return self._now.choose(texts)

    def think(self, texts: Sequence[Text]) -> None:
        """As the drafter's own rounds do."""
        self._now.think(texts)

    def observe(self, round_: Round, found: Found, seconds: float | None) -> None:
        """The first round of a shape, which may have things to make, tells nothing, nor does one
        that was recorded meanwhile."""
        self._now.observe(round_, found, seconds)
        if round_.drafter is None or seconds is None:
            return  # the first is one of texts that are decoded plainly
        places = doublings(len(round_.running))
        played = self.drafts, places, round_.shape
        if played in self._played:
            tokens = sum(len(run) for _, run in found) / len(found)
            self._chooser.observe(places, self.drafts, tokens, seconds)
        self._played.add(played)


def doublings(texts: int) -> int:
    """From one text up to so many: whose rounds take about as long, and may be one recording."""
    return (texts - 1).bit_length()
