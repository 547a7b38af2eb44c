"""Rounds of every shape, each made once."""

from collections.abc import Callable, Iterable

from torch import Tensor

from eagle_aot.runtime_runner.decode.next_token_probs import PredictsNextToken
from eagle_aot.runtime_runner.decode.round import BatchState, Drafter, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode


class Rounds:
    """Over the same sequences: those at the first places run, the others fill a shape.

    Where rounds are recorded there are few shapes, of 1, 2, 4, ... sequences.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        running: BatchState,
        max_rows: int,
        record: Callable[[Call], Call] | None,
    ) -> None:
        """`record` makes a round cheap to repeat, None where nothing is recorded; a shape has
        `max_rows` rows at most."""
        self.target, self.drafter, self.running = target, drafter, running
        self._max_rows, self._record = max_rows, record
        self._made: dict[tuple[int, Shape, bool, bool], Round] = {}
        self.recordings = 0
        """That were ever made of them."""

    def fitting(self, texts: int, shape: Shape) -> Shape:
        """As much of it as there are rows for in a round of so many texts."""
        return shape.within(self._max_rows // self.places(texts), self._max_rows)

    def longest_chain(self, texts: int) -> int:
        """As many drafts as there are rows for in a round of so many texts."""
        return self._max_rows // self.places(texts) - 1

    def places(self, texts: int) -> int:
        """How many sequences a round of so many texts has."""
        if self._record is None:
            return texts
        return min(1 << (texts - 1).bit_length(), len(self.running))

    def shapes(self, texts: int, wanted: Iterable[Shape]) -> set[tuple[int, Shape]]:
        """Sequences and drafts of each, of all rounds that up to so many texts may need."""
        places = {self.places(count) for count in range(1, texts + 1)}
        every = set(wanted)
        return {(size, self.fitting(size, shape)) for size in places for shape in every}

    def of(
        self, texts: int, shape: Shape, *, observed: bool = False, foreseen: bool = False
    ) -> Round:
        """The round of the texts at the first places, drafted `shape` each or as much of it as
        there are rows for. With `observed`, the drafter is shown plain rounds too; where it is
        `foreseen`, a drafter that can tells what it expects behind the round."""
        shape = self.fitting(texts, shape)
        observed = observed or shape.nodes > 0
        made = self.places(texts), shape, observed, foreseen and observed
        if made not in self._made:
            drafter = self.drafter if observed else None
            self._made[made] = self.make(made[0], shape, drafter, foreseen=made[-1])
        return self._made[made]

    def make(
        self, places: int, shape: Shape, drafter: Drafter | None, *, foreseen: bool = False
    ) -> Round:
        """A new one. Recording plays it as well, while nobody runs."""
        foreseeing = drafter if foreseen and isinstance(drafter, PredictsNextToken) else None
        running = self.running.first(places)
        round_ = Round(self.target, drafter, shape, running, foreseeing)
        if self._record is not None:
            round_.play = Recordings(round_.step, self.running, self._recorded)
        return round_

    def _recorded(self, step: Call) -> Call:
        assert self._record is not None
        self.recordings += 1
        return self._record(step)


class Recordings:
    """Of a round, one for each kind of choice that it has been played with, and with log
    probabilities or without."""

    def __init__(self, step: Call, running: BatchState, record: Callable[[Call], Call]) -> None:
        self._step, self._running, self._record = step, running, record
        self._made: dict[tuple[SamplingMode, bool], Call] = {}
        self._current()

    def __call__(self) -> Tensor:
        return self._current()()

    def _current(self) -> Call:
        kind = self._running.sampler.kind, self._running.sampler.wants_logprobs
        if kind not in self._made:
            with self._running.idle():
                self._made[kind] = self._record(self._step)
        return self._made[kind]
