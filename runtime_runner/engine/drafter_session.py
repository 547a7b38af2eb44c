"""The drafter of an opened program: its rounds, and what chooses among them."""

from collections.abc import Sequence

from eagle_aot.artifact import Constants
from eagle_aot.runtime_runner.adaptive.backlog import Backlog, CatchUpDrafter
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable, measure
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.shape import PLAIN, Shape, auto_shapes
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.warm_up import WarmUp, warm_up
from eagle_aot.runtime_runner.program.executor import Executor

MAX_BACKLOG = 128  # rows


class DrafterSession:
    """The drafter of an opened artifact, with its rounds over the sequences of `batch`.

    Measuring and recording rounds overwrites the caches: no request may run at the same time, and
    the prefix cache is lost.
    """

    def __init__(
        self,
        drafter: CatchUpDrafter,
        target: TargetMethods,
        batch: BatchState,
        constants: Constants,
        executor: Executor,
    ) -> None:
        self.drafter, self.target, self.constants = drafter, target, constants
        self._batch = batch
        record = executor.repeat if executor.records else None
        rows = constants.max_rows, constants.max_step_rows
        self.rounds = Rounds(target, drafter, batch, *rows, record)
        self.chooser = Chooser(CostTable())
        self._adaptive: AdaptiveSchedule | None = None

    def is_measured(self, trees: bool) -> bool:
        """Whether the costs of rounds have been measured, with trees or without."""
        return self._adaptive is not None and set(self._shapes(trees)) <= set(self._adaptive.rounds)

    def adaptive(self, trees: bool) -> AdaptiveSchedule:
        """Return the schedule of a request that runs alone, with trees or without.

        It learns from request to request. The first call measures the costs of rounds, which takes
        some seconds.
        """
        if self._adaptive is None or not self.is_measured(trees):
            self._adaptive = self._measured(trees)
        return self._adaptive

    def warm_up(self, requests: int, shape: Shape | None, *, trees: bool) -> WarmUp:
        """Make all rounds that up to `requests` requests need, drafted `shape`.

        Without a shape, these are all that may be chosen, with `trees` or without. Raises as
        `warm_up` does.
        """
        self.run_short_prompt()  # a recorded round needs the drafter's state to exist
        if shape is not None:
            return warm_up(self.rounds, requests, [shape])
        self.adaptive(trees)
        return warm_up(self.rounds, requests, self._shapes(trees), observed=True)

    def run_short_prompt(self) -> None:
        """Run a prompt through target and drafter, which gives both a state."""
        prompt = [0] * self.constants.min_prefill_chunk
        run = Prefill(self.target, self.drafter, prompt, self._batch.sequences[:1])
        while run.left:
            run.run_chunk()

    def _shapes(self, trees: bool) -> Sequence[Shape]:
        return [shape for shape in auto_shapes(trees) if shape.depth < self.constants.tail]

    def _measured(self, trees: bool) -> AdaptiveSchedule:
        """Measure the costs of all rounds that may be chosen."""
        constants = self.constants
        rows = min(MAX_BACKLOG, constants.max_prefill_chunk, constants.max_seq_len // 2)
        backlog = Backlog(self.drafter, rows, self._batch.narrow(1))
        self.run_short_prompt()
        positions = constants.min_prefill_chunk, constants.max_seq_len - constants.tail
        rounds = [
            self.rounds.get_round(1, shape)
            if shape.nodes
            else self.rounds.build_round(1, PLAIN, backlog)
            for shape in self._shapes(trees)
        ]
        with self._batch.idle():  # no request runs afterwards either
            self.chooser.costs.restart(measure(rounds, backlog, positions))
        return AdaptiveSchedule(rounds, backlog, self.chooser)
