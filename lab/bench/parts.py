"""The parts of a round, each as a step on tensors that stay where they are."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.artifact import (
    DFLASH_BLOCK,
    DFLASH_CONTEXT,
    DRAFTERS,
    MTP_DECODE,
    PEAGLE_DECODE,
    TARGET_VERIFY,
    Constants,
)
from eagle_aot.lab.bench.results import BLOCK, PLAIN, SEED, STEP, VERIFY
from eagle_aot.lab.bench.settings import Settings
from eagle_aot.lab.bench.timing import Timed
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import Target, no_moves
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.runner import Runner


@runtime_checkable
class Blockwise(Protocol):
    """A drafter of blocks of at least so many rows."""

    block_size: int


class RepeatedForward:
    """One forward of a method over a fixed number of rows at the end of a context.

    It overwrites the same cache slots every time, so it may be repeated.
    """

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        method: str,
        shape: tuple[int, int],
        *more: Tensor,
    ) -> None:
        """`shape` is the number of sequences and of rows of each; `more` are the method's inputs
        behind those of a step."""
        self.method = method
        self.sequences, self.rows = shape
        self._executor = executor
        self._vocab_size = constants.vocab_size
        self._more = more
        tokens = torch.zeros(shape, dtype=torch.int64, device=executor.device)
        places = torch.arange(self.sequences, device=executor.device)
        self._step = chain_rows(tokens, torch.zeros_like(places), places, constants.tail)
        self.timed = Timed(executor.repeat(self._run), self._prepare)

    @property
    def name(self) -> str:
        """What the report calls it."""
        if self.method == TARGET_VERIFY:
            return PLAIN if self.rows == 1 else VERIFY
        if self.method == DFLASH_BLOCK:
            return BLOCK
        return STEP if self.rows == 1 and self.method != DFLASH_CONTEXT else SEED

    def place(self, context: int) -> None:
        """Run at the positions behind the first `context` tokens from now on."""
        step = self._step
        first = torch.full_like(step.sequences, context)
        here = chain_rows(step.tokens, first, step.sequences, step.tail.shape[-1])
        step.positions.copy_(here.positions)
        step.tail.copy_(here.tail)

    def _prepare(self) -> None:
        fill_randomly(self._step.tokens, self._vocab_size)

    def _run(self) -> Tensor:
        inputs: tuple[Tensor, ...] = self._step.inputs
        if self.method == DFLASH_CONTEXT:  # of a text that is decided
            inputs = self._step.positions, self._step.sequences
        return self._executor.run(self.method, *inputs, *self._more)[0]


class WholeRound:
    """A round of the runner's own, begun at the same context before every call, by the first
    `texts` of its sequences; the others fill their places."""

    def __init__(self, round_: Round, vocab_size: int, texts: int = 1) -> None:
        self.shape = round_.shape
        self._round = round_
        self._vocab_size = vocab_size
        self._texts = texts
        self._context = 0
        self.timed = Timed(round_.play, self._prepare, moves=True)

    def place(self, context: int) -> None:
        """Begin behind the first `context` tokens from now on."""
        self._context = context

    def _prepare(self) -> None:
        running = self._round.running
        fill_randomly(running.bonus, self._vocab_size)
        running.position.fill_(-1)
        running.position[: self._texts].fill_(self._context)
        running.moves.fill_(-1)
        for index in range(len(running)):
            running.limit_drafts(self.shape, index)


class Parts:
    """All that is timed of one artifact, at one context after the other."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        """To be made before a context is filled: recording a step runs it at the first slots."""
        constants, executor = runner.constants, runner.executor
        drafts = *map(Shape.chain, (0, *settings.chain_lens)), *settings.trees
        self.rounds = [WholeRound(runner.round(s), constants.vocab_size) for s in drafts]
        method = executor, constants, TARGET_VERIFY
        self.forwards = [
            RepeatedForward(*method, shape, no_moves(shape[0], constants.tail, executor.device))
            for shape in settings.shapes(constants.max_rows)
        ]
        self.forwards += drafting_forwards(runner, drafts)

    def place(self, context: int) -> None:
        """Run everything at the end of the first `context` tokens, which are in the caches."""
        for forward in self.forwards:
            forward.place(context)
        for round_ in self.rounds:
            round_.place(context)


def drafting_forwards(runner: Runner, drafts: Sequence[Shape]) -> Iterator[RepeatedForward]:
    """Those of the drafter in rounds of these shapes, plain ones among them."""
    constants, executor = runner.constants, runner.executor
    methods = DRAFTERS[runner.drafter.kind]
    features = some_features(runner.target, constants, executor.device) if methods else None
    for method in methods:
        for rows in rows_of(method, runner, drafts):
            shape = executor, constants, method, (1, rows)
            given = [] if method == DFLASH_BLOCK or features is None else [features[:, :rows]]
            yield RepeatedForward(*shape, *(one.clone() for one in given))


def rows_of(method: str, runner: Runner, drafts: Sequence[Shape]) -> list[int]:
    """How many rows of a sequence a drafter's method runs in such rounds."""
    committed = {shape.depth + 1 for shape in drafts}
    branches = {1, *(shape.topk for shape in drafts if not shape.is_chain)}
    if method == DFLASH_BLOCK:
        assert isinstance(runner.drafter, Blockwise)
        return sorted({max(rows, runner.drafter.block_size) for rows in committed})
    if method == DFLASH_CONTEXT:
        return sorted(committed)
    if method == PEAGLE_DECODE:  # masks behind the first draft
        return sorted(committed | {shape.depth - 1 for shape in drafts if shape.depth > 1})
    return sorted(branches if method == MTP_DECODE else branches | committed)


def fill_randomly(tokens: Tensor, vocab_size: int) -> None:
    """Put other random token ids into `tokens` int64, where they are."""
    tokens.random_(vocab_size)


def some_features(target: Target, constants: Constants, device: torch.device) -> Tensor:
    """What a drafter reads of a chain of random tokens, [1, D, H]."""
    tokens = torch.randint(constants.vocab_size, (1, constants.tail), device=device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    step = chain_rows(tokens, first, first, constants.tail)
    return target.verify(step, no_moves(1, constants.tail, device)).features
