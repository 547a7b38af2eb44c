"""One drafter over the caches of a program: its rounds, and what chooses among them."""

from eagle_aot.artifact import DRAFTERS, Constants
from eagle_aot.runtime_runner.adaptive.backlog import (
    Backlog,
    CatchUpDrafter,
    NoBacklog,
    RecordedBacklog,
)
from eagle_aot.runtime_runner.adaptive.batch import LENGTHS
from eagle_aot.runtime_runner.adaptive.chooser import LONG, Chooser
from eagle_aot.runtime_runner.adaptive.costs.measure import measure_costs, plain_seconds
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.adaptive.shapes import LONGEST, PLAIN, TREES
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.warm_up import WarmUp, warm_up
from eagle_aot.runtime_runner.program.executor import Executor

BACKLOG_ROWS = 128  # at most


class DrafterSession:
    """The drafter of an opened artifact, with its rounds over the sequences of `running`.

    Measuring and recording rounds writes to the caches: no request may run meanwhile, and what the
    caches held is lost.
    """

    def __init__(
        self,
        drafter: CatchUpDrafter,
        target: TargetMethods,
        running: BatchState,
        constants: Constants,
        executor: Executor,
    ) -> None:
        self.drafter, self.target, self.constants = drafter, target, constants
        self._running = running
        self._recorded = executor.device.type == "cuda"
        record = executor.repeat if self._recorded else None
        self.rounds = Rounds(target, drafter, running, constants.max_rows, record)
        self._adaptive: dict[bool, AdaptiveSchedule] = {}

    def is_measured(self, trees: bool) -> bool:
        """Whether it is known what rounds cost, with trees among them or without."""
        return trees in self._adaptive

    def adaptive(self, trees: bool) -> AdaptiveSchedule:
        """Rounds of every shape, with trees or without, and what chooses between them, which learns
        from text to text. What they cost is measured when it is first asked for, which takes some
        seconds."""
        if trees not in self._adaptive:
            self._adaptive[trees] = self._measured(trees)
        return self._adaptive[trees]

    def warm_up(self, requests: int, shape: Shape | None, *, trees: bool) -> WarmUp:
        """Make all rounds of up to so many texts that are drafted `shape`, or what pays where that
        is None, trees among them or not. Raises as `warm_up` does."""
        self.read_something()  # what is recorded starts from a state that exists
        if shape is not None:
            return warm_up(self.rounds, requests, [shape])
        self.adaptive(trees)
        shapes = [*map(Shape.chain, LENGTHS), *(TREES if trees else ())]
        return warm_up(self.rounds, requests, shapes, observed=True, next_token_probs=trees)

    def read_something(self) -> None:
        """In target and drafter, which gives both a state."""
        prompt = [0] * self.constants.min_prefill_chunk
        run = Prefill(self.target, self.drafter, prompt, self._running.sequences[:1])
        while run.left:
            run.run_chunk()

    def _measured(self, trees: bool) -> AdaptiveSchedule:
        constants = self.constants
        rows = min(BACKLOG_ROWS, constants.max_prefill_chunk, constants.max_seq_len // 2)
        backlog = self._backlog(rows)
        self.read_something()
        chains = map(Shape.chain, range(1, min(LONGEST, constants.tail - 1) + 1))
        shapes = [*chains, *(TREES if trees else ())]
        positions = constants.min_prefill_chunk, constants.max_seq_len - constants.tail
        plain = self.rounds.make(1, PLAIN, backlog)
        with self._running.idle():
            next_token_probs = trees and plain_seconds(plain, backlog, positions[0]) >= LONG
        rounds = [
            plain,
            *(self.rounds.of(1, shape, next_token_probs=next_token_probs) for shape in shapes),
        ]
        with self._running.idle():  # behind it nobody runs either
            costs = measure_costs(rounds, backlog, positions)
        return AdaptiveSchedule(rounds, backlog, Chooser(costs))

    def _backlog(self, rows: int) -> Backlog:
        kept = RecordedBacklog if self._recorded else Backlog
        needed = kept if DRAFTERS[self.drafter.kind] else NoBacklog
        return needed(self.drafter, rows, self._running.first(1))
