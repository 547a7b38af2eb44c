"""Does a row depend on its neighbours? Compare bits, through an artifact's own methods.

A row's logits and features must be those that it has alone (T = 1, the first sequence, its path in
the slots of its positions) wherever it is computed: among others, in a wider bucket, in the caches
of another sequence, in a batch, as a node of a tree whose path lies in scattered slots, and after a
path that was moved. Its largest logit must be that where no other one is read.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor

from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.decode.step import Draft, StepRows, chain_rows, tree_rows
from eagle_aot.runtime_runner.decode.target import Forward, no_moves
from eagle_aot.runtime_runner.runner import Runner


@dataclass(frozen=True, slots=True)
class RowComparison:
    """How many rows were compared in a situation, and how many of them differ in any bit."""

    situation: str
    rows: int
    different: int


class RowCheck:
    """Rows of a random text after its first `context` tokens."""

    def __init__(self, runner: Runner, context: int, seed: int = 0) -> None:
        self.runner, self.context = runner, context
        constants = runner.constants
        self.rows = min(constants.max_rows, constants.max_seq_len - context)
        self._rng = random.Random(seed)
        self._tokens = self._random_tokens(context + self.rows)
        self._device = runner.executor.device
        self._text = torch.tensor([self._tokens], device=self._device)
        self._fill(0, context)
        self._alone = self._decode(0, range(self.rows))
        self._fill(0, context)  # recurrent states do not go back

    def all(self) -> Iterator[RowComparison]:
        """Yield a comparison for every situation that fits the artifact's limits."""
        yield from (self._among(rows) for rows in (2, 4, 5, 8, 16, 33, 64) if rows <= self.rows)
        if self.runner.target.screens_table:
            yield from (self._largest(rows) for rows in (1, 2, 5, 8) if rows <= self.rows)
        yield self._padded()
        last = self.runner.constants.max_batch_size - 1
        powers = (1 << bit for bit in range(last.bit_length()))
        yield from (self._sequence(s) for s in sorted({*powers, last} - {0}))
        if last:
            yield self._in_a_batch()
        if self.rows > self.runner.constants.tail:
            yield from self._tree()

    def _among(self, rows: int) -> RowComparison:
        return self._compared(f"among {rows}", self._verify(self._chain(rows)), range(rows))

    def _largest(self, rows: int) -> RowComparison:
        """Compare the largest logits of rows where no other one is read."""
        forward = self._verify(self._chain(rows), largest_only=True)
        pairs = zip(forward.logits[0], self._alone.logits[0], strict=False)
        same = [torch.equal(largest(found), largest(alone)) for found, alone in pairs]
        return RowComparison(f"largest of {rows}", rows, same.count(False))

    def _padded(self) -> RowComparison:
        """Compare rows of a bucket whose other half is padding."""
        used = max(1, self.rows // 2)
        step = self._chain(self.rows, used=used)
        return self._compared(f"{used} in a bucket of {self.rows}", self._verify(step), range(used))

    def _sequence(self, sequence: int) -> RowComparison:
        self._fill(sequence, self.context)
        return self._compared(
            f"sequence {sequence}", self._decode(sequence, range(self.rows)), range(self.rows)
        )

    def _in_a_batch(self) -> RowComparison:
        """Compare rows of the last of all sequences, each with a length of its own."""
        constants = self.runner.constants
        batch = constants.max_batch_size
        rows = min(constants.max_step_rows // batch, self.rows)
        lengths = [max(1, self.context - 7 * (batch - 1 - s)) for s in range(batch - 1)]
        lengths.append(self.context)
        for sequence, length in enumerate(lengths):
            self._fill(sequence, min(length, self.context))
        first = torch.tensor(lengths, device=self._device).clamp(max=self.context)
        positions = (first.unsqueeze(1) + torch.arange(rows, device=self._device)).flatten()
        tokens = self._text[0].index_select(0, positions).view(batch, rows)
        sequences = torch.arange(batch, device=self._device)
        forward = self._verify(chain_rows(tokens, first, sequences, constants.tail))
        self._fill(0, self.context)
        last = Forward(forward.logits[-1:], forward.features[-1:])
        return self._compared(f"in a batch of {batch}", last, range(rows))

    def _tree(self) -> Iterator[RowComparison]:
        """Compare a path of full depth whose nodes lie anywhere in a tree, then what follows it."""
        tail = self.runner.constants.tail
        rows = min(self.runner.constants.max_rows, self.rows)
        nodes = sorted(self._rng.sample(range(1, rows), min(tail - 1, rows - 1)))
        path = [0, *nodes]
        parents, tokens = [0] * (rows - 1), self._random_tokens(rows - 1)
        for parent, (depth, row) in zip(path, enumerate(nodes, start=1), strict=False):
            parents[row - 1] = parent
            tokens[row - 1] = self._tokens[self.context + depth]
        ranks = [parents[:i].count(parent) for i, parent in enumerate(parents)]
        draft = Draft(
            self._tensor([tokens]),
            self._tensor([parents]),
            self._tensor([ranks]),
            depth=max(len(nodes), 1),
        )
        bonus = self._text[:, self.context : self.context + 1]
        step = tree_rows(bonus, self._tensor([self.context]), self._tensor([0]), draft, tail)
        forward = self._verify(step)
        rows_of_path = self._tensor(path)
        on_path = Forward(*(x.index_select(1, rows_of_path) for x in forward))
        yield self._compared("as nodes of a tree", on_path, range(len(path)))
        slots = step.tail[:, :, -1].index_select(1, rows_of_path)
        yield self._moved(slots, len(path))

    def _moved(self, slots: Tensor, length: int) -> RowComparison:
        """Compare rows after a path that lies in `slots`, int64 [1, length]."""
        tail = self.runner.constants.tail
        moves = no_moves(1, tail, self._device)
        moves[:, tail - length :] = slots
        rows = self.rows - length
        step = self._chain(rows, start=length)
        forward = self.runner.target.verify(step, moves)
        return self._compared("after a moved path", forward, range(length, length + rows))

    def _compared(self, situation: str, forward: Forward, rows: range) -> RowComparison:
        same = [
            torch.equal(forward.logits[0, i], self._alone.logits[0, row])
            and torch.equal(forward.features[0, i], self._alone.features[0, row])
            for i, row in enumerate(rows)
        ]
        return RowComparison(situation, len(same), same.count(False))

    def _chain(self, rows: int, used: int | None = None, start: int = 0) -> StepRows:
        first = self.context + start
        tokens = self._text[:, first : first + rows]
        further = None if used is None else self._tensor([used - 1])
        return chain_rows(
            tokens, self._tensor([first]), self._tensor([0]), self.runner.constants.tail, further
        )

    def _decode(self, sequence: int, rows: range) -> Forward:
        """Run one row after the other."""
        forwards = []
        for position in (self.context + row for row in rows):
            tokens = self._text[:, position : position + 1]
            first, index = self._tensor([position]), self._tensor([sequence])
            step_rows = chain_rows(tokens, first, index, self.runner.constants.tail)
            forwards.append(self._verify(step_rows))
        return Forward(*(torch.cat(outputs, dim=1) for outputs in zip(*forwards, strict=True)))

    def _verify(self, step: StepRows, *, largest_only: bool = False) -> Forward:
        moves = no_moves(step.tokens.shape[0], self.runner.constants.tail, self._device)
        return self.runner.target.verify(step, moves, largest_only=largest_only)

    def _fill(self, sequence: int, length: int) -> None:
        self.runner.reserve(sequence, length)
        if length:
            running = BatchState([sequence], self.runner.constants.tail, self._device)
            round_ = Round(self.runner.target, None, 0, running)
            prefill(round_, self._tokens[:length], Stats(chain_len=0))

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self.runner.constants.vocab_size) for _ in range(count)]

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def largest(logits: Tensor) -> Tensor:
    """Return logits [V] with zero in place of all but the largest."""
    return torch.where(logits == logits.amax(), logits, 0.0)


def check_rows(runner: Runner, contexts: Sequence[int]) -> list[tuple[int, RowComparison]]:
    """Compare rows at context 0 and at each of `contexts`."""
    return [
        (context, comparison)
        for context in [0, *contexts]
        for comparison in RowCheck(runner, context).all()
    ]


def rows_table(comparisons: Sequence[tuple[int, RowComparison]]) -> Table:
    """Return a line for each context and situation."""
    table = Table("context", "situation", "rows", "different")
    for context, row in comparisons:
        table.add_row(str(context), row.situation, str(row.rows), str(row.different))
    return table
