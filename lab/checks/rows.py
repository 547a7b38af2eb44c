"""Does a row feel its neighbours? Bit for bit, through an artifact's own methods.

A row's logits and features must be those that it has alone (T = 1, the first sequence, its path in
the slots of its positions) wherever it is computed: among others, in a wider bucket, in the caches
of another sequence, beside other sequences, as a node of a tree whose path lies in scattered slots,
and behind a path that was moved.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.step import Draft, StepRows, chain_rows, tree_rows
from eagle_aot.runtime_runner.decode.target import Forward, no_moves
from eagle_aot.runtime_runner.engine.generation import prefill
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.runner import Runner


@dataclass(frozen=True, slots=True)
class Compared:
    """How many rows were compared in a situation, and how many differ in any bit."""

    situation: str
    rows: int
    different: int


class RowCheck:
    """Rows of a random text behind `context` tokens of it."""

    def __init__(self, runner: Runner, context: int, seed: int = 0) -> None:
        self.runner, self.context = runner, context
        constants = runner.constants
        self.rows = min(constants.max_rows, constants.max_seq_len - context)
        rng = random.Random(seed)
        count = context + self.rows
        self._noise = [rng.randrange(constants.vocab_size) for _ in range(count)]
        self._rng = rng
        self._device = runner.executor.device
        self._text = torch.tensor([self._noise], device=self._device)
        self._fill(0, context)
        self._alone = self._decode(0, range(self.rows))

    def all(self) -> Iterator[Compared]:
        """Every situation that the artifact has room for."""
        yield from (self._among(rows) for rows in (2, 4, 5, 8, 16, 33, 64) if rows <= self.rows)
        yield self._padded()
        yield from (self._sequence(s) for s in range(1, self.runner.constants.max_batch_size))
        if self.runner.constants.max_batch_size > 1:
            yield self._beside_others()
        if self.rows > self.runner.constants.tail:
            yield from self._tree()

    def _among(self, rows: int) -> Compared:
        return self._compared(f"among {rows}", self._verify(self._chain(rows)), range(rows))

    def _padded(self) -> Compared:
        """Half of a bucket is padding."""
        used = max(1, self.rows // 2)
        step = self._chain(self.rows, used=used)
        return self._compared(f"{used} in a bucket of {self.rows}", self._verify(step), range(used))

    def _sequence(self, sequence: int) -> Compared:
        self._fill(sequence, self.context)
        return self._compared(
            f"sequence {sequence}", self._decode(sequence, range(self.rows)), range(self.rows)
        )

    def _beside_others(self) -> Compared:
        """All sequences in one forward, each at its own length; ours in the last cache."""
        constants = self.runner.constants
        batch = min(constants.max_batch_size, constants.max_rows)
        rows = min(constants.max_rows // batch, self.rows)
        lengths = [max(1, self.context - 7 * (batch - 1 - s)) for s in range(batch - 1)]
        lengths.append(self.context)
        for sequence, length in enumerate(lengths):
            self._fill(sequence, min(length, self.context))
        first = torch.tensor(lengths, device=self._device).clamp(max=self.context)
        places = (first.unsqueeze(1) + torch.arange(rows, device=self._device)).flatten()
        tokens = self._text[0].index_select(0, places).view(batch, rows)
        order = torch.arange(batch, device=self._device)
        step = chain_rows(tokens, first, order, constants.tail)
        found = self._verify(step)
        self._fill(0, self.context)
        last = Forward(found.logits[-1:], found.features[-1:])
        return self._compared(f"beside {batch - 1} other sequences", last, range(rows))

    def _tree(self) -> Iterator[Compared]:
        """A path of full depth whose nodes stand anywhere among others; then what follows it."""
        tail = self.runner.constants.tail
        rows = min(self.runner.constants.max_rows, self.rows)
        nodes = sorted(self._rng.sample(range(1, rows), min(tail - 1, rows - 1)))
        path = [0, *nodes]
        parents, tokens = [0] * (rows - 1), self._random_tokens(rows - 1)
        for before, (depth, row) in zip(path, enumerate(nodes, start=1), strict=False):
            parents[row - 1] = before
            tokens[row - 1] = self._noise[self.context + depth]
        ranks = [parents[:i].count(parent) for i, parent in enumerate(parents)]
        draft = Draft(
            self._tensor([tokens]),
            self._tensor([parents]),
            self._tensor([ranks]),
            depth=max(len(nodes), 1),
        )
        bonus = self._text[:, self.context : self.context + 1]
        step = tree_rows(bonus, self._tensor([self.context]), self._tensor([0]), draft, tail)
        found = self._verify(step)
        picked = self._tensor(path)
        on_path = Forward(*(x.index_select(1, picked) for x in found))
        yield self._compared("as nodes of a tree", on_path, range(len(path)))
        slots = step.tail[:, :, -1].index_select(1, picked)
        yield self._moved(slots, len(path))

    def _moved(self, slots: Tensor, length: int) -> Compared:
        """Behind a path that lies in `slots` int64 [1, length]."""
        tail = self.runner.constants.tail
        moves = no_moves(1, tail, self._device)
        moves[:, tail - length :] = slots
        rows = self.rows - length
        step = self._chain(rows, start=length)
        found = self.runner.target.verify(step, moves)
        return self._compared("behind a moved path", found, range(length, length + rows))

    def _compared(self, situation: str, found: Forward, rows: range) -> Compared:
        same = [
            torch.equal(found.logits[0, i], self._alone.logits[0, row])
            and torch.equal(found.features[0, i], self._alone.features[0, row])
            for i, row in enumerate(rows)
        ]
        return Compared(situation, len(same), same.count(False))

    def _chain(self, rows: int, used: int | None = None, start: int = 0) -> StepRows:
        first = self.context + start
        tokens = self._text[:, first : first + rows]
        where = self._tensor([first]), self._tensor([0])
        count = None if used is None else self._tensor([used])
        return chain_rows(tokens, *where, self.runner.constants.tail, count)

    def _decode(self, sequence: int, rows: range) -> Forward:
        """One row after the other."""
        tail, found = self.runner.constants.tail, []
        for row in rows:
            place = self.context + row
            tokens = self._text[:, place : place + 1]
            found.append(
                self._verify(
                    chain_rows(tokens, self._tensor([place]), self._tensor([sequence]), tail)
                )
            )
        return Forward(*(torch.cat(outputs, dim=1) for outputs in zip(*found, strict=True)))

    def _verify(self, step: StepRows) -> Forward:
        moves = no_moves(step.tokens.shape[0], self.runner.constants.tail, self._device)
        return self.runner.target.verify(step, moves)

    def _fill(self, sequence: int, length: int) -> None:
        if length:
            running = BatchState([sequence], self.runner.constants.tail, self._device)
            round_ = Round(self.runner.target, None, 0, running)
            prefill(round_, self._noise[:length], Stats(chain_len=0))

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self.runner.constants.vocab_size) for _ in range(count)]

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
