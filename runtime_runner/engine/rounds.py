"""Rounds of all batch sizes and shapes, each made and recorded once."""

from collections.abc import Callable, Iterable

from torch import Tensor

from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import ConfidentDrafter, Drafter, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.shared_rows import Lines
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.program.executor import Call, Part, Recorder
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.token_masks import HostCopy


class Rounds:
    """Makes rounds over the first sequences of a batch state, padded to a bucket.

    Where rounds are recorded, the buckets are 1, 2, 4, ... sequences.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        batch: BatchState,
        max_rows: int,
        max_step_rows: int,
        record: Recorder | None,
    ) -> None:
        """`record` makes a round cheap to repeat; without it rounds are not recorded.

        A round has at most `max_rows` rows of a request, `max_step_rows` in all. Where the drafter
        has confidence, requests share them; not with recurrent states, which take in the rows of
        one line.
        """
        self.target, self.drafter, self.batch = target, drafter, batch
        self._max_rows, self._max_step_rows = max_rows, max_step_rows
        self._record = record
        self._max_lines = 0
        if isinstance(drafter, ConfidentDrafter) and not target.has_states:
            self._max_lines = drafter.max_lines
        self._rounds: dict[tuple[int, Shape, bool, Lines | None], Round] = {}
        self.recordings = 0
        """The number of recordings made so far."""

    def fitting(self, requests: int, shape: Shape) -> Shape:
        """Return as much of the shape as fits the rows of a round of so many requests."""
        rows = max(1, self._max_step_rows // self.batch_size(requests))
        return shape.within(min(rows, self._max_rows), self._max_rows)

    def batch_size(self, requests: int) -> int:
        """Return how many sequences a round of so many requests has, padding included."""
        if self._record is None:
            return requests
        return min(1 << (requests - 1).bit_length(), len(self.batch))

    def shapes(self, requests: int, shapes: Iterable[Shape]) -> set[tuple[int, Shape]]:
        """Return batch size and shape of all rounds that up to so many requests may need."""
        batch_sizes = {self.batch_size(count) for count in range(1, requests + 1)}
        return {(size, self.fitting(size, s)) for s in set(shapes) for size in batch_sizes}

    def get_round(self, requests: int, shape: Shape, *, observed: bool = False) -> Round:
        """Return the round of the first requests, each drafted `shape` or as much of it as fits.

        With `observed`, the drafter sees plain rounds too, and requests share the rows of a chain;
        without it they share those of a chain that does not fit.
        """
        size, fitting = self.batch_size(requests), self.fitting(requests, shape)
        shares = observed or fitting.depth < shape.depth
        lines = self._lines(size, fitting) if shares else None
        observed = observed or fitting.nodes > 0
        key = size, fitting, observed, lines
        if key not in self._rounds:
            drafter = self.drafter if observed else None
            self._rounds[key] = self.build_round(size, fitting, drafter, lines)
        return self._rounds[key]

    def _lines(self, batch_size: int, shape: Shape) -> Lines | None:
        return Lines.sharing(batch_size, shape, self._max_lines, confident_drafts(self.drafter))

    def build_round(
        self, batch_size: int, shape: Shape, drafter: Drafter | None, lines: Lines | None = None
    ) -> Round:
        """Make a new round. Recording it runs it once with padding only.

        Rounds of one sequence that are not recorded verify likely drafts alone: a GPU verifies a
        chain in nearly the time of one row.
        """
        confident = shape.is_chain and 1 < shape.depth <= confident_drafts(drafter)
        cuts = self._record is None and batch_size == 1 and confident
        batch = self.batch.narrow(batch_size)
        round_ = Round(self.target, drafter, shape, batch, lines, cuts=cuts)
        if self._record is not None:
            round_.run = Recordings(round_, self.batch, self._recorded)
        return round_

    def _recorded(self, step: Callable[[], Part]) -> Callable[[], Part]:
        assert self._record is not None
        self.recordings += 1
        return self._record(step)


def confident_drafts(drafter: Drafter | None) -> int:
    """Return how many drafts of a chain a drafter knows the survival of; 0 for one without
    confidence."""
    return drafter.confident_drafts if isinstance(drafter, ConfidentDrafter) else 0


class Recordings:
    """A round's recordings: one for each sampling mode, with and without log probabilities, and
    with and without constraints."""

    def __init__(self, round_: Round, batch: BatchState, record: Recorder) -> None:
        self._round, self._batch, self._record = round_, batch, record
        self._recordings: dict[tuple[SamplingMode, bool, bool], Call] = {}
        self._current()

    def __call__(self) -> Tensor:
        return self._current()()

    def _current(self) -> Call:
        sampler = self._batch.sampler
        key = sampler.mode, sampler.wants_logprobs, sampler.is_constrained
        if key not in self._recordings:
            with self._batch.idle():
                if sampler.is_constrained:
                    self._recordings[key] = RecordedParts(self._round, self._record)
                else:
                    self._recordings[key] = self._record(self._round.step)
        return self._recordings[key]


class RecordedParts:
    """A round whose parts are recordings of their own: the host follows the drafts of requests with
    constraints between them, or, where it rarely replaces one, and for masks, while the target
    runs."""

    def __init__(self, round_: Round, record: Recorder) -> None:
        self._round = round_
        self._draft = record(round_.draft)
        drafted = self._draft()  # the next part reads these tensors while it is recorded
        self._verify = record(lambda: round_.verify(drafted))
        forward = self._verify()
        self._decide = record(lambda: round_.decide(drafted, forward))

    def __call__(self) -> Tensor:
        masks = self._round.batch.sampler.masks
        self._round.look_ahead()
        drafted = self._draft()
        if masks.replaces_drafts:
            followed = self._round.follow(drafted)
            self._verify()
        else:
            assert drafted.packed is not None, "these rounds have constraints"
            packed = HostCopy(drafted.packed)
            self._verify()
            followed = masks.follow(packed.wait(), None)
        self._round.fill_masks(followed)
        return self._decide()
