"""The parts of a round, each as a step on tensors that stay in place."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.artifact import (
    DFLASH2_SCORES,
    DFLASH_BLOCKS,
    DFLASH_CONTEXT,
    DRAFTERS,
    DSPARK_BIAS,
    MTP_DECODE,
    PEAGLE_DECODE,
    TARGET_VERIFY,
    Constants,
)
from eagle_aot.lab.bench.results import BLOCK, PLAIN, RESEED, STEP, VERIFY
from eagle_aot.lab.bench.timing import Timed
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import Target, no_moves
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.runner import Runner

if TYPE_CHECKING:
    from eagle_aot.lab.bench.rounds import RoundsSpec


CORRECTIONS = DFLASH2_SCORES, DSPARK_BIAS
"""Methods that follow the block's, for each place or each draft of it."""


@runtime_checkable
class Blockwise(Protocol):
    """A drafter that drafts blocks of at least `block_size` rows."""

    block_size: int


class RepeatedForward:
    """One forward of a method over a fixed number of rows at the end of a context.

    It overwrites the same slots every time, so that it may be repeated.
    """

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        method: str,
        shape: tuple[int, int],
        *more: Tensor,
    ) -> None:
        """`shape` is (sequences, rows of each); `more` are the method's inputs after a step's."""
        self.method = method
        self.sequences, self.rows = shape
        self._executor = executor
        self._vocab_size = constants.vocab_size
        self._more = more
        tokens = torch.zeros(shape, dtype=torch.int64, device=executor.device)
        sequences = torch.arange(self.sequences, device=executor.device)
        self._step = chain_rows(tokens, torch.zeros_like(sequences), sequences, constants.tail)
        self.timed = Timed(executor.repeat(self._run), self._prepare)

    @property
    def name(self) -> str:
        """The forward's name in the report."""
        if self.method == TARGET_VERIFY:
            return PLAIN if self.rows == 1 else VERIFY
        if self.method in DFLASH_BLOCKS:
            return BLOCK
        return STEP if self.rows == 1 and self.method != DFLASH_CONTEXT else RESEED

    def place(self, context: int) -> None:
        """Run at the positions after the first `context` tokens from now on."""
        step = self._step
        first = torch.full_like(step.sequences, context)
        moved = chain_rows(step.tokens, first, step.sequences, step.tail.shape[-1])
        step.positions.copy_(moved.positions)
        step.tail.copy_(moved.tail)

    def _prepare(self) -> None:
        fill_randomly(self._step.tokens, self._vocab_size)

    def _run(self) -> Tensor:
        inputs: tuple[Tensor, ...] = self._step.inputs
        if self.method == DFLASH_CONTEXT:  # it reads no tokens
            inputs = self._step.positions, self._step.sequences
        return self._executor.run(self.method, *inputs, *self._more)[0]


class WholeRound:
    """A round of the runner's own, which starts at the same context in every call.

    The first `batch_size` of its sequences run; the others are padding.
    """

    def __init__(self, round_: Round, vocab_size: int, batch_size: int = 1) -> None:
        self.shape = round_.shape
        self._round = round_
        self._vocab_size = vocab_size
        self._batch_size = batch_size
        self._context = 0
        self.timed = Timed(round_.run, self._prepare, moves=True)

    def place(self, context: int) -> None:
        """Start after the first `context` tokens from now on."""
        self._context = context

    def _prepare(self) -> None:
        running = self._round.batch
        fill_randomly(running.bonus, self._vocab_size)
        running.position.fill_(-1)
        running.position[: self._batch_size].fill_(self._context)
        running.moves.fill_(-1)
        for index in range(len(running)):
            running.limit_drafts(self.shape, index)


class Parts:
    """Everything that is timed of one artifact, at one context after the other."""

    def __init__(self, runner: Runner, spec: "RoundsSpec") -> None:
        """Make this before a context is filled: recording a step runs it in the first slots."""
        constants, executor = runner.constants, runner.executor
        shapes = [*map(Shape.chain, (0, *spec.chain_lens)), *spec.tree_shapes]
        self.rounds = [WholeRound(runner.round(shape), constants.vocab_size) for shape in shapes]
        self.forwards = [
            RepeatedForward(
                executor,
                constants,
                TARGET_VERIFY,
                (sequences, rows),
                *runner.target.inputs_after(
                    no_moves(sequences, constants.tail, executor.device), largest_only=True
                ),
            )
            for sequences, rows in spec.verified_shapes(constants.max_step_rows)
        ]
        self.forwards += drafting_forwards(runner, shapes)

    def place(self, context: int) -> None:
        """Run everything after the first `context` tokens, which are in the caches."""
        for forward in self.forwards:
            forward.place(context)
        for round_ in self.rounds:
            round_.place(context)


def drafting_forwards(runner: Runner, shapes: Sequence[Shape]) -> Iterator[RepeatedForward]:
    """Yield the drafter's forwards in rounds of these shapes, plain rounds among them. What
    corrects the drafts of a block is timed in rounds alone."""
    constants, executor = runner.constants, runner.executor
    methods = [name for name in DRAFTERS[runner.drafter.kind] if name not in CORRECTIONS]
    if not methods:
        return
    features = random_features(runner.target, constants, executor.device)
    for method in methods:
        for rows in rows_of(method, runner, shapes):
            more = [] if method in DFLASH_BLOCKS else [features[:, :rows].clone()]
            yield RepeatedForward(executor, constants, method, (1, rows), *more)


def rows_of(method: str, runner: Runner, shapes: Sequence[Shape]) -> list[int]:
    """Return the numbers of rows that a drafter's method runs in rounds of these shapes."""
    committed = {shape.depth + 1 for shape in shapes}
    branches = {1, *(shape.topk for shape in shapes if not shape.is_chain)}
    if method in DFLASH_BLOCKS:
        assert isinstance(runner.drafter, Blockwise)
        return sorted({max(rows, runner.drafter.block_size) for rows in committed})
    if method == DFLASH_CONTEXT:
        return sorted(committed)
    if method == PEAGLE_DECODE:  # mask rows follow the first draft
        return sorted(committed | {shape.depth - 1 for shape in shapes if shape.depth > 1})
    return sorted(branches if method == MTP_DECODE else branches | committed)


def fill_randomly(tokens: Tensor, vocab_size: int) -> None:
    """Replace `tokens`, int64, in place by random ones."""
    tokens.random_(vocab_size)


def random_features(target: Target, constants: Constants, device: torch.device) -> Tensor:
    """Return the fused features of a chain of random tokens, [1, D, H]."""
    tokens = torch.randint(constants.vocab_size, (1, constants.tail), device=device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    step = chain_rows(tokens, first, first, constants.tail)
    return target.verify(step, no_moves(1, constants.tail, device)).features
