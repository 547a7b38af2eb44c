"""Which tokens the constraints of requests allow after each row of a step.

The host follows the drafts of each row and writes a bit for each token; the device masks logits by
these bits. Everything that the device reads is always in the same tensors, as recorded rounds need.
Shapes: B sequences with T rows each, V tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.common.threads import single_threaded_on_cpu
from eagle_aot.runtime_runner.sampling.constraint import Constraint, DraftRows

ROWS = 64
"""Rows of a step, unless the number is given."""
BITS = 8
WORD = 4
"""Bytes of the words that llguidance writes masks in."""
ALL = 255
"""A byte that allows its tokens."""

PADDING = -1
"""Stands for the parent of a row that is not used."""
Followed = tuple[Constraint | None, DraftRows]
"""A sequence's rows in a step, and what its answer must match."""


class TokenMasks:
    """The constraints of an artifact's sequences, and bitmasks for the rows of one step."""

    def __init__(self, vocab: int, device: torch.device, rows: int = ROWS) -> None:
        """Hold masks of `vocab` tokens for `rows` rows, allocated for the first constraint."""
        self._shape = rows, -(-vocab // (BITS * WORD)) * WORD
        self._vocab, self._device = vocab, device
        self._constraints: dict[int, Constraint] = {}
        self._host: Tensor | None = None  # uint8 [rows, W]
        self._bitmask: Tensor | None = None  # the same on the device
        self._bits: Tensor | None = None  # uint8 [BITS]

    def __bool__(self) -> bool:
        """Whether any request has a constraint."""
        return bool(self._constraints)

    def begin(self, sequence: int, constraint: Constraint) -> None:
        """Begin an answer in a sequence."""
        self._constraints[sequence] = constraint
        if self._host is None:
            is_cuda = self._device.type == "cuda"
            self._host = torch.full(self._shape, ALL, dtype=torch.uint8, pin_memory=is_cuda)
            self._bitmask = self._host.to(self._device)  # on a CPU the same tensor
            self._bits = 1 << torch.arange(BITS, dtype=torch.uint8, device=self._device)

    def end(self, sequence: int) -> None:
        """End the answer in a sequence, if there is one."""
        self._constraints.pop(sequence, None)

    def clear(self) -> None:
        """End all answers."""
        self._constraints.clear()

    def follow(self, packed: Tensor, tokens: Tensor) -> list[Followed]:
        """Read the rows of a step that `pack_rows` packed, and put tokens that must come in the
        place of drafts that cannot, in its `tokens` int64 [B, T] too. Returns them for `fill`."""
        values = packed.tolist()  # waits for the device
        steps = [(self._constraints.get(sequence), rows_of(rest)) for sequence, *rest in values]
        changed = [c is not None and c.repair(rows) for c, rows in steps]
        if any(changed):
            tokens.copy_(torch.tensor([rows.tokens for _, rows in steps]))
        return steps

    def fill(self, steps: Sequence[Followed]) -> None:
        """Write the masks of all rows of a step, and copy them to the device."""
        assert self._host is not None and self._bitmask is not None
        count = len(steps[0][1].tokens)
        host = self._host[: count * len(steps)]
        host.numpy().fill(ALL)  # by this thread alone: torch would wake others
        for (constraint, rows), bitmask in zip(steps, host.split(count), strict=True):
            if constraint is not None:
                constraint.fill(rows, bitmask)
        if self._bitmask is not self._host:
            self._bitmask[: len(host)].copy_(host, non_blocking=True)

    def fill_answer(self, sequence: Tensor) -> None:
        """Write the mask after the answer of `sequence` int64 [1], without drafts."""
        self.fill([(self._constraints.get(int(sequence)), DraftRows([0], [[]]))])

    def masked(self, logits: Tensor) -> Tensor:
        """Return logits [B, T, V] with minus infinity for tokens that the last `fill` forbids."""
        assert self._bitmask is not None and self._bits is not None
        rows = logits.shape[0] * logits.shape[1]
        with single_threaded_on_cpu(logits):
            forbidden = (self._bitmask[:rows].unsqueeze(-1) & self._bits) == 0
            forbidden = forbidden.flatten(1)[:, : self._vocab].view(logits.shape)
            return logits.masked_fill(forbidden, -torch.inf)


def pack_rows(sequences: Tensor, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
    """Return what the host reads of a step in one copy: int64 [B, 2 * T + 1].

    `sequences` int64 [B]; `tokens`, `positions` and `parents`, the rows before each, int64 [B, T].
    """
    parents = torch.where(positions >= 0, parents, PADDING)
    return torch.cat((sequences.unsqueeze(1), tokens, parents), dim=1)


def rows_of(values: Sequence[int]) -> DraftRows:
    """Return the rows of one sequence, whose tokens and parents are in `values`."""
    count = len(values) // 2
    children: list[list[int]] = [[] for _ in range(count)]
    for row, parent in enumerate(values[count + 1 :], start=1):
        if parent != PADDING:
            children[parent].append(row)
    return DraftRows([*values[:count]], children)
