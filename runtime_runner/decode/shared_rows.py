"""Share the rows of a step among its texts, by how likely their drafts are accepted.

A step runs L lines of U rows each. The first B lines begin with the bonus tokens of B texts; each
further one continues the chain of a text, for which it goes to the drafts that are likeliest to be
accepted. Which these are is decided on the device, and no shape depends on it, so that a round can
be recorded. What a row computes does not depend on its line.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.shape import MAX_AUTO_DEPTH, Shape
from eagle_aot.runtime_runner.decode.step import NO_SLOT, Draft, DraftLimits, StepRows, chain_rows
from eagle_aot.runtime_runner.decode.target import Forward

ROWS_OF_A_LINE = 2
"""The fewest rows of a line: each line reads the keys of its whole text."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a step: `count` lines of `rows` rows, for texts that draft `depth` tokens."""

    count: int
    rows: int
    depth: int

    @property
    def rows_of_a_text(self) -> int:
        """The rows of a whole chain, in whole lines."""
        return -(-(self.depth + 1) // self.rows) * self.rows

    @classmethod
    def sharing(cls, batch_size: int, shape: Shape, most: int, drafts: int) -> Self | None:
        """Return lines for `batch_size` texts, in all as many rows as their chains of this `shape`
        have; None if there is nothing to share.

        A program takes at most `most` lines; a text drafts at most `drafts` tokens.
        """
        depth = min(drafts, MAX_AUTO_DEPTH)
        if not shape.is_chain or not 0 < shape.depth < depth or not most:
            return None
        budget = batch_size * (shape.depth + 1)
        rows = max(-(-budget // most), ROWS_OF_A_LINE)
        return cls(budget // rows, rows, depth) if budget // rows > batch_size > 1 else None


@dataclass(frozen=True, slots=True)
class SharedRows:
    """The rows of a step by text and by line.

    `by_text` has the rows of each text's whole chain, [B, T]; those without a line are padding.
    `by_line` are the rows that run, [L, U]; `moves` int64 [L, D] are theirs. `line` int64
    [B * T / U] is the line of each part of a chain, any for one without a line.
    """

    by_text: StepRows
    by_line: StepRows
    moves: Tensor
    line: Tensor

    def unpacked(self, forward: Forward) -> Forward:
        """Return what the lines computed, [L, U, ...], by text: [B, T, ...]."""
        shape = self.by_text.tokens.shape
        return Forward(*(x.index_select(0, self.line).view(*shape, x.shape[-1]) for x in forward))


def share_rows(
    lines: Lines,
    bonus: Tensor,
    first: Tensor,
    sequences: Tensor,
    draft: Draft,
    moves: Tensor,
    limits: DraftLimits,
) -> SharedRows:
    """Return the rows of chains after `bonus` int64 [B, 1] at positions `first` int64 [B].

    `draft` has each draft's probability to be accepted; `sequences` int64 [B], `moves` int64
    [B, D]. A text gets at most `limits` drafts.
    """
    assert draft.survival is not None
    (batch, drafts), parts = draft.tokens.shape, lines.rows_of_a_text // lines.rows
    unused = lines.rows_of_a_text - 1 - drafts
    further, padded = limits.depth.clamp(max=drafts), pad(draft.tokens, (0, unused))
    rows = chain_rows(bonus, first, sequences, moves.shape[1], further, padded)
    gains = pad(draft.survival, (1, unused)) * (rows.positions >= 0)
    text, part = chosen_parts(gains.unflatten(1, (parts, -1)).sum(2), rows, lines)
    places = text * parts + part
    line = places.new_zeros(batch * parts)
    line.scatter_(0, places, arange_cached(0, lines.count, places.device))
    has_line = torch.zeros_like(line).index_fill_(0, places, 1).view(batch, parts, 1)
    tail = rows.tail.unflatten(1, (parts, -1)).flatten(0, 1)[places]
    tokens, positions = (
        x.unflatten(1, (parts, -1)).flatten(0, 1)[places] for x in (rows.tokens, rows.positions)
    )
    by_line = StepRows(tokens, positions, sequences[text], tail)
    by_part = rows.positions.unflatten(1, (parts, -1))
    positions = torch.where(has_line > 0, by_part, NO_SLOT).flatten(1)
    by_text = StepRows(rows.tokens, positions, sequences, rows.tail)
    return SharedRows(
        by_text, by_line, pad(moves, (0, 0, 0, lines.count - batch), value=NO_SLOT), line
    )


def chosen_parts(gains: Tensor, rows: StepRows, lines: Lines) -> tuple[Tensor, Tensor]:
    """Return the text and the part of its chain of each line, int64 [L] each: the first part of
    every text, then those with the largest `gains` float [B, parts].

    Gains never grow along a chain, and of equal ones the earlier part comes first, so that no part
    is without the one before it. Parts without valid rows, in `rows`, come last.
    """
    batch, parts = gains.shape
    is_valid = rows.positions.unflatten(1, (parts, -1))[..., 0] >= 0
    further = torch.where(is_valid, gains, -1.0)[:, 1:].t().flatten()
    order = further.sort(descending=True, stable=True).indices[: lines.count - batch]
    firsts = arange_cached(0, batch, gains.device)
    return torch.cat((firsts, order % batch)), torch.cat(
        (torch.zeros_like(firsts), order // batch + 1)
    )
