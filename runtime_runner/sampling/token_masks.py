"""Which tokens the constraints of requests allow after each row of a step.

The host follows the drafts of each row and writes a bit for each token; the device masks logits by
these bits. Everything that the device reads is always in the same tensors, as recorded rounds need.
Shapes: B sequences with T rows each, V tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

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

UNLIKELY = -1e9
"""The logit of a draft that cannot come. It is finite: log softmax of nothing else is not."""
FORCED = 16
"""How many tokens that must come are drafted with certainty."""
FREE = -1
"""Stands for a token that need not come."""
PADDING = -1
"""Stands for the parent of a row that is not used."""
CALM = 4
"""After so many rounds without a draft to replace, no round waits for the host to find one."""
Followed = tuple[Constraint | None, DraftRows]
"""A sequence's rows in a step, and what its answer must match."""


class TokenMasks:
    """The constraints of an artifact's S sequences, and bitmasks for the rows of one step."""

    def __init__(self, sequences: int, vocab: int, device: torch.device, rows: int = ROWS) -> None:
        """Hold masks of `vocab` tokens for `rows` rows, allocated for the first constraint."""
        self._sequences, self._vocab, self._rows = sequences, vocab, rows
        self._device = device
        self._constraints: dict[int, Constraint] = {}
        self._bitmask: Mirrored | None = None  # uint8 [rows, W]
        self._ahead: Tensor | None = None  # uint8 [S, W] on the host, after each answer
        self._forced: Mirrored | None = None  # int64 [S, FORCED], the tokens that must follow it
        self._calm_rounds = 0  # since a draft was to be replaced

    def __bool__(self) -> bool:
        """Whether any request has a constraint."""
        return bool(self._constraints)

    def begin(self, sequence: int, constraint: Constraint) -> None:
        """Begin an answer in a sequence."""
        self._constraints[sequence], self._calm_rounds = constraint, 0
        if self._bitmask is None:
            width, device = -(-self._vocab // (BITS * WORD)) * WORD, self._device
            self._bitmask = Mirrored((self._rows, width), ALL, torch.uint8, device)
            self._ahead = torch.full((self._sequences, width), ALL, dtype=torch.uint8)
            self._forced = Mirrored((self._sequences, FORCED), FREE, torch.int64, device)

    def end(self, sequence: int) -> None:
        """End the answer in a sequence, if there is one."""
        self._constraints.pop(sequence, None)

    def clear(self) -> None:
        """End all answers."""
        self._constraints.clear()

    @property
    def replaces_drafts(self) -> bool:
        """Whether drafts are likely to be replaced, as they were a few rounds ago."""
        return self._calm_rounds < CALM

    def follow(self, packed: Tensor, tokens: Tensor | None) -> list[Followed]:
        """Read the rows of a step that `pack_rows` packed, and put tokens that must come in the
        place of drafts that cannot, in its `tokens` int64 [B, T] too. Returns them for `fill`.

        Without `tokens` the drafts stay as they are: the target verifies them already.
        """
        values = packed.tolist()  # waits for the device
        steps = [(self._constraints.get(sequence), rows_of(rest)) for sequence, *rest in values]
        repaired = [(c, replace(rows, tokens=[*rows.tokens])) for c, rows in steps]
        changed = [c is not None and c.repair(rows) for c, rows in repaired]
        self._calm_rounds = 0 if any(changed) else self._calm_rounds + 1
        if tokens is None or not any(changed):
            return steps
        new = torch.tensor([rows.tokens for _, rows in repaired])
        tokens.copy_(new.pin_memory() if tokens.is_cuda else new, non_blocking=True)
        return repaired

    def look_ahead(self) -> None:
        """Write what must follow all answers, and on a CPU what may, for drafters.

        A GPU would wait for these masks, which in a string of limited length take 0.8 ms each.
        """
        assert self._ahead is not None and self._forced is not None
        is_cpu, forced = self._device.type == "cpu", self._forced.host.numpy()
        before = forced.copy()
        forced.fill(FREE)
        if is_cpu:
            self._ahead.numpy().fill(ALL)
        for sequence, constraint in self._constraints.items():
            tokens = constraint.look_ahead(self._ahead[sequence] if is_cpu else None)[:FORCED]
            forced[sequence, : len(tokens)] = tokens
        if (forced != before).any():
            self._forced.copy()

    def fill(self, steps: Sequence[Followed]) -> None:
        """Write the masks of all rows of a step, and copy them to the device."""
        assert self._bitmask is not None
        count = len(steps[0][1].tokens)
        host = self._bitmask.host[: count * len(steps)]
        host.numpy().fill(ALL)  # by this thread alone: torch would wake others
        for (constraint, rows), bitmask in zip(steps, host.split(count), strict=True):
            if constraint is not None:
                constraint.fill(rows, bitmask)
        self._bitmask.copy(len(host), overlapped=True)

    def fill_answer(self, sequence: Tensor) -> None:
        """Write the mask after the answer of `sequence` int64 [1], without drafts."""
        self.fill([(self._constraints.get(int(sequence)), DraftRows([0], [[]]))])

    def bitmask(self, rows: int) -> Tensor:
        """Return the masks of a step's first rows that the last `fill` wrote: uint8 [rows, W]."""
        assert self._bitmask is not None
        return self._bitmask.device[:rows]

    def masked_first(self, logits: Tensor, sequences: Tensor, ids: Tensor | None) -> Tensor:
        """Return a drafter's logits [B, F, Vd] with `UNLIKELY` for first tokens that cannot follow
        the answers of `sequences` int64 [B]: see `look_ahead`. `ids` int [Vd] are the target's of
        the columns."""
        assert self._ahead is not None
        if logits.device.type != "cpu":
            return logits
        with single_threaded_on_cpu(logits):
            forbidden = forbidden_by(self._ahead[sequences], self._vocab)
            forbidden = forbidden if ids is None else forbidden[:, ids]
            first = logits[:, :1].masked_fill(forbidden.unsqueeze(1), UNLIKELY)
            return torch.cat((first, logits[:, 1:]), dim=1)

    def forced(self, tokens: Tensor, depth: int, sequences: Tensor) -> Tensor:
        """Replace drafts int64 [B, 1], with `depth` others between them and the answers of
        `sequences` int64 [B], by tokens that must come there."""
        assert self._forced is not None
        if depth >= FORCED:
            return tokens
        forced = self._forced.device[sequences, depth].unsqueeze(1)
        return torch.where(forced >= 0, forced, tokens)


def forbidden_by(bitmask: Tensor, vocab: int) -> Tensor:
    """Unpack masks uint8 [R, W] of `vocab` tokens V. Returns bool [R, V]."""
    bits = 1 << torch.arange(BITS, dtype=torch.uint8, device=bitmask.device)
    return ((bitmask.unsqueeze(-1) & bits) == 0).flatten(1)[:, :vocab]


class Mirrored:
    """A tensor that the host writes and the device reads. On a CPU both are the same."""

    def __init__(
        self, shape: tuple[int, ...], value: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        is_cuda = device.type == "cuda"
        self.host = torch.full(shape, value, dtype=dtype, pin_memory=is_cuda)
        self.device = self.host.to(device)
        self._stream = torch.cuda.Stream(device) if is_cuda else None

    def copy(self, rows: int | None = None, *, overlapped: bool = False) -> None:
        """Copy the first rows, or all, to the device, before what is launched next.

        With `overlapped`, it runs beside what was launched before, which must not read the tensor.
        """
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self.device.device)
        with torch.cuda.stream(self._stream if overlapped else current):
            self.device[:rows].copy_(self.host[:rows], non_blocking=True)
        if overlapped:
            current.wait_stream(self._stream)


class HostCopy:
    """A copy of a tensor on the host, which does not wait for what is launched after it."""

    def __init__(self, tensor: Tensor) -> None:
        """Launch the copy. On a CPU there is none."""
        self._host, self._end = tensor, None
        if tensor.is_cuda:
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._end = torch.cuda.current_stream(tensor.device).record_event()

    def wait(self) -> Tensor:
        """Return it when it is there."""
        if self._end is not None:
            self._end.synchronize()
        return self._host


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
