"""Accepts the drafts that the target would have chosen itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.step import StepRows, masked
from eagle_aot.triton_kernels.device import launches_for


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted path of each of B sequences: at most P rows of the step, the bonus row first.

    `count` int64 [B] drafts were accepted, so the first `count + 1` entries of the other tensors
    are valid: `rows` int64 [B, P] are row numbers of the step, `tokens` int64 [B, P] the tokens
    that the target chose after each row, `slots` int64 [B, P] the rows' slots. `bonus_position`
    int64 [B] is the bonus token's, negative for padding. For a tree, `ranks` int64 [B, P] are
    the rows' ranks among their siblings, and `offered_ranks` int64 [B, P] is a bit mask of the
    ranks of each row's children; both are None for a chain.
    """

    count: Tensor
    rows: Tensor
    tokens: Tensor
    slots: Tensor
    bonus_position: Tensor
    sequences: Tensor
    ranks: Tensor | None = None
    offered_ranks: Tensor | None = None

    @property
    def last_token(self) -> Tensor:
        """Return the target's choice after the path, int64 [B, 1]: the next bonus token."""
        return self.tokens.gather(1, self.count.unsqueeze(1))

    def of_path(self, values: Tensor) -> Tensor:
        """Select the path's rows of values [B, T, V]; returns [B, P, V]."""
        if self.ranks is None:  # a chain is its own path
            return values
        return torch.take_along_dim(values, self.rows.unsqueeze(2), dim=1)


def accept(step: StepRows, choices: Tensor) -> Accepted:
    """Return the longest path from the bonus row along the target's choices, int64 [B, T] by row.

    Siblings must be different tokens: of two equal ones, the path might take either.
    """
    slots, first = step.tail[..., -1], step.positions[:, 0]
    if step.lineage is None:
        rows, count = _chain(step, choices)
        return Accepted(count, rows, choices, slots, first, step.sequences)
    assert step.ranks is not None
    rows, count = _tree(step, choices)
    tokens, slots, ranks, offered_ranks = (
        of_rows.gather(1, rows) for of_rows in (choices, slots, step.ranks, _offered_ranks(step))
    )
    return Accepted(count, rows, tokens, slots, first, step.sequences, ranks, offered_ranks)


def committed(following: Tensor, input_pos: Tensor, sequence: Tensor) -> Accepted:
    """Return rows of a known text, such as a prompt, as if they had been accepted.

    `following` int64 [1, T] are the tokens after each of the rows at positions `input_pos` int64
    [T]; `sequence` is int64 [1].
    """
    rows = torch.arange(len(input_pos), device=input_pos.device)
    return Accepted(
        count=rows[-1:],
        rows=rows.unsqueeze(0),
        tokens=following,
        slots=input_pos.unsqueeze(0),
        bonus_position=input_pos[:1],
        sequences=sequence,
    )


def _chain(step: StepRows, choices: Tensor) -> tuple[Tensor, Tensor]:
    rows = arange_cached(0, choices.shape[1], choices.device).expand_as(choices)
    if choices.shape[1] == 1:
        return rows, arange_cached(0, 1, choices.device).expand(len(choices))
    if launches_for(choices):
        from eagle_aot.triton_kernels.chain_rows import launch_accept

        return rows, launch_accept(step.tokens, choices, step.positions)
    matches = step.tokens[:, 1:] == choices[:, :-1]
    if len(choices) > 1:  # some of them may have fewer rows
        matches = matches & (step.positions[:, 1:] >= 0)
    # The first mismatch, or the number of drafts: fewer operations than running products.
    return rows, torch.where(matches, rows[:, -1:], rows[:, :-1]).amin(dim=1)


def _tree(step: StepRows, choices: Tensor) -> tuple[Tensor, Tensor]:
    assert step.lineage is not None
    lineage = step.lineage  # [D, B, T]
    matches = (step.tokens == choices.gather(1, lineage[1])) & (step.positions >= 0)
    matches = matches | (lineage[0] == 0)
    path_matches = matches.expand_as(lineage).gather(2, lineage).all(dim=0)
    depth = (lineage > 0).sum(dim=0)
    count, leaf = masked(path_matches, depth).max(dim=1)
    path = lineage.gather(2, leaf.view(1, -1, 1).expand(lineage.shape[0], -1, 1)).squeeze(2)
    step_back = (count.unsqueeze(1) - arange_cached(0, len(lineage), leaf.device)).clamp(min=0)
    return path.t().gather(1, step_back), count


def _offered_ranks(step: StepRows) -> Tensor:
    """Return int64 [B, T]: bit r of a row is set where it has a child of rank r."""
    assert step.lineage is not None and step.ranks is not None
    drafts = (step.positions >= 0) & (step.lineage[0] > 0)
    bits = drafts * (1 << step.ranks)
    return torch.zeros_like(step.tokens).scatter_add_(1, step.lineage[1], bits)
