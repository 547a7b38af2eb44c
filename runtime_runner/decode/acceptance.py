"""Which drafts the target would have chosen itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.step import StepRows, arange_cached, masked


@dataclass(frozen=True, slots=True)
class Accepted:
    """A path of rows behind which the text goes on, for each of B sequences, P rows at most.

    `count` int64 [B] drafts were accepted, so the first `count + 1` entries of the others hold:
    `rows` int64 [B, P], which rows of the step, the bonus first; `tokens` int64 [B, P], what the
    target chose behind each; `slots` int64 [B, P], where they lie. `first` int64 [B] is the bonus
    token's position, negative for a sequence that only fills its place. Of a tree, `ranks` int64
    [B, P] are the rows' among the drafts behind the same row, and `offered` int64 [B, P] those of
    all drafts behind each, bit by bit; both None for a chain.
    """

    count: Tensor
    rows: Tensor
    tokens: Tensor
    slots: Tensor
    first: Tensor
    sequences: Tensor
    ranks: Tensor | None = None
    offered: Tensor | None = None

    @property
    def last_token(self) -> Tensor:
        """The target's choice behind the path, int64 [B, 1]: the next bonus."""
        return self.tokens.gather(1, self.count.unsqueeze(1))

    def of_path(self, values: Tensor) -> Tensor:
        """Of values [B, T, V] by row those of the path's, [B, P, V]."""
        if self.ranks is None:  # a chain is its own path
            return values
        return torch.take_along_dim(values, self.rows.unsqueeze(2), dim=1)


def accept(step: StepRows, choices: Tensor) -> Accepted:
    """The longest path from the bonus along the target's own choices, int64 [B, T] by row.

    The drafts behind one token must differ, or the first of equals may not be the one that counts.
    """
    slots, first = step.tail[..., -1], step.positions[:, 0]
    if step.lineage is None:
        rows, count = _chain(step, choices)
        return Accepted(count, rows, choices, slots, first, step.sequences)
    assert step.ranks is not None
    rows, count = _tree(step, choices)
    tokens, slots, ranks, offered = (
        of_rows.gather(1, rows) for of_rows in (choices, slots, step.ranks, _offered(step))
    )
    return Accepted(count, rows, tokens, slots, first, step.sequences, ranks, offered)


def committed(following: Tensor, input_pos: Tensor, sequence: Tensor) -> Accepted:
    """Rows of a text that is decided, as if they had been accepted.

    `following` int64 [1, T] are the tokens behind each of the rows at `input_pos` int64 [T].
    """
    rows = torch.arange(len(input_pos), device=input_pos.device)
    return Accepted(
        count=rows[-1:],
        rows=rows.unsqueeze(0),
        tokens=following,
        slots=input_pos.unsqueeze(0),
        first=input_pos[:1],
        sequences=sequence,
    )


def _chain(step: StepRows, choices: Tensor) -> tuple[Tensor, Tensor]:
    rows = arange_cached(0, choices.shape[1], choices.device).expand_as(choices)
    if choices.shape[1] == 1:
        return rows, arange_cached(0, 1, choices.device).expand(len(choices))
    right = step.tokens[:, 1:] == choices[:, :-1]
    if len(choices) > 1:  # of which some may have fewer rows
        right = right & (step.positions[:, 1:] >= 0)
    return rows, right.cumprod(dim=1).sum(dim=1)


def _tree(step: StepRows, choices: Tensor) -> tuple[Tensor, Tensor]:
    assert step.lineage is not None
    lineage = step.lineage  # [D, B, T]
    right = (step.tokens == choices.gather(1, lineage[1])) & (step.positions >= 0)
    right = right | (lineage[0] == 0)
    whole = right.expand_as(lineage).gather(2, lineage).all(dim=0)
    depth = (lineage > 0).sum(dim=0)
    count, leaf = masked(whole, depth).max(dim=1)
    path = lineage.gather(2, leaf.view(1, -1, 1).expand(lineage.shape[0], -1, 1)).squeeze(2)
    step_back = (count.unsqueeze(1) - arange_cached(0, len(lineage), leaf.device)).clamp(min=0)
    return path.t().gather(1, step_back), count


def _offered(step: StepRows) -> Tensor:
    """Bit r is set where a draft of rank r stands behind the row, int64 [B, T]."""
    assert step.lineage is not None and step.ranks is not None
    drafts = (step.positions >= 0) & (step.lineage[0] > 0)
    bits = drafts * (1 << step.ranks)
    return torch.zeros_like(step.tokens).scatter_add_(1, step.lineage[1], bits)
