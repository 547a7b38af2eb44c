"""The rows of a round as tensors: each sequence's bonus token, then a chain or a tree of drafts.

Everything is computed on the device from tensors of fixed shapes. Shapes: B sequences, N drafts
each, T rows each, D the artifact's `tail`.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.triton_kernels.device import launches_for

NO_SLOT = -1
"""The position, and the slot, of padding."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft tokens of B sequences: `tokens` int64 [B, N].

    For a tree, `parents` int64 [B, N] is the row of each token's parent (0 for the bonus token,
    i + 1 for draft i, always an earlier row), `ranks` int64 [B, N] the rank among its siblings, and
    `depth` the length of the longest path. All three are None for a chain. `scores` float64 [B, N]
    are the drafter's log probabilities of the paths, or None. `survival` float32 [B, N] is, for a
    chain of a drafter with confidence, the probability that each draft is accepted; else None.
    """

    tokens: Tensor
    parents: Tensor | None = None
    ranks: Tensor | None = None
    depth: int | None = None
    scores: Tensor | None = None
    survival: Tensor | None = None

    def confident(self, least: float) -> "Draft":
        """Return the drafts of a chain of one text that are accepted with a probability of at least
        `least`, or the first one. Waits for the device."""
        assert self.survival is not None
        count = max(int((self.survival[0] >= least).sum()), 1)
        return replace(self, tokens=self.tokens[:, :count], survival=None)


@dataclass(frozen=True, slots=True)
class StepRows:
    """The inputs of a step method: `tokens` and `positions` int64 [B, T], `sequences` int64 [B],
    `tail` int64 [B, T, D].

    For a tree, `lineage` int64 [P, B, T] lists each row's ancestors by row number: the row itself
    first, then up to the bonus row 0, which repeats; P is the length of the longest path. `ranks`
    int64 [B, T] are the rows' ranks among their siblings. Both are None for a chain.
    """

    tokens: Tensor
    positions: Tensor
    sequences: Tensor
    tail: Tensor
    lineage: Tensor | None = None
    ranks: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tensors in the order of a method's signature."""
        return self.tokens, self.positions, self.sequences, self.tail


def chain_rows(
    tokens: Tensor,
    first: Tensor,
    sequences: Tensor,
    tail_length: int,
    further: Tensor | None = None,
    drafts: Tensor | None = None,
) -> StepRows:
    """Return consecutive rows, stored in the slots of their positions.

    `tokens` int64 [B, T], or int64 [B, 1] before `drafts` int64 [B, T - 1]; `first` int64 [B] is
    the position of each sequence's first row, negative for padding; `further` int64 [B], at least
    0, is how many rows after the first are valid, all of them where it is None.
    """
    if launches_for(tokens):
        from eagle_aot.triton_kernels.chain_rows import launch_rows

        drafts = tokens[:, 1:] if drafts is None else drafts
        tokens, positions, tail = launch_rows(tokens, drafts, first, further, tail_length)
        return StepRows(tokens, positions, sequences, tail)
    if drafts is not None:
        tokens = torch.cat((tokens, drafts), dim=1)
    first = first.unsqueeze(1)
    if tokens.shape[1] == 1:  # the first row is always used
        positions = first.clamp(min=-1)
        return StepRows(tokens, positions, sequences, chain_tail(positions, tail_length))
    offsets = arange_cached(0, tokens.shape[1], tokens.device)
    is_valid = first >= 0
    if further is not None:
        is_valid = is_valid & (offsets <= further.unsqueeze(1))
    positions = masked(is_valid, first + offsets)
    return StepRows(tokens, positions, sequences, chain_tail(positions, tail_length))


def chain_tail(positions: Tensor, tail_length: int) -> Tensor:
    """Return the slots of the last D positions up to each: int64 [B, T] -> [B, T, D]."""
    back = arange_cached(1 - tail_length, 1, positions.device)
    return (positions.unsqueeze(-1) + back).clamp(min=-1)


def paths_of(step: StepRows) -> Tensor:
    """Return the drafts on each row's path, its own first: int64 [B, T, P], padded with -1."""
    count = step.tokens.shape[1]
    if step.lineage is None:
        rows = arange_cached(0, count, step.tokens.device)
        path = (rows.unsqueeze(1) - rows[:-1]).clamp(min=0).expand(len(step.tokens), -1, -1)
    else:
        path = step.lineage[:-1].permute(1, 2, 0)  # the last entry is always the bonus row
    tokens = step.tokens.unsqueeze(1).expand(-1, count, -1).gather(2, path)
    return torch.where(path > 0, tokens, -1)


def parents_of(step: StepRows) -> Tensor:
    """Return the row before each row: int64 [B, T], 0 for row 0."""
    if step.lineage is not None:
        return step.lineage[1]
    count = step.tokens.shape[1]
    return arange_cached(-1, count - 1, step.tokens.device).clamp(min=0).expand_as(step.tokens)


def masked(is_valid: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
    """Replace `values` int64 [...] by -1 where `is_valid`, a bool that broadcasts, is False. The
    result is written to `out`, of the same shape, if given."""
    return torch.where(is_valid, values, arange_cached(NO_SLOT, 0, values.device), out=out)


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """The largest `depth` and the largest `topk` of each sequence's drafts, both int64 [B]."""

    depth: Tensor
    topk: Tensor


def tree_rows(
    bonus: Tensor,
    first: Tensor,
    sequences: Tensor,
    draft: Draft,
    tail_length: int,
    limits: DraftLimits | None = None,
) -> StepRows:
    """Return the rows of a draft tree after `bonus` int64 [B, 1] at positions `first` int64 [B].

    Nodes outside `limits` become padding. `sequences` is int64 [B]. Nodes are stored after all
    slots that a path may be moved to, so a move never overwrites what another move reads.
    """
    assert draft.parents is not None and draft.ranks is not None and draft.depth is not None
    device, root = bonus.device, arange_cached(0, 1, bonus.device).expand_as(bonus)
    parents = torch.cat((root, draft.parents), dim=1)
    ranks = torch.cat((root, draft.ranks), dim=1)
    steps = [arange_cached(0, parents.shape[1], device).expand_as(parents)]
    for _ in range(draft.depth):
        steps.append(parents.gather(1, steps[-1]))
    lineage = torch.stack(steps)
    depth = (lineage > 0).sum(dim=0)
    is_valid = first.unsqueeze(1) >= 0
    if limits is not None:
        narrow = (ranks < limits.topk.unsqueeze(1)) | (depth == 0)
        narrow = narrow.expand_as(lineage).gather(2, lineage).all(dim=0)
        is_valid = is_valid & narrow & (depth <= limits.depth.unsqueeze(1))
    positions = masked(is_valid, first.unsqueeze(1) + depth)
    tokens = torch.cat((bonus, draft.tokens), dim=1)
    slots = first.unsqueeze(1) + node_slots(parents.shape[1], tail_length, device)
    tails = tree_tails(
        positions, depth * is_valid, slots, torch.stack(steps[::-1], dim=2), tail_length
    )
    return StepRows(tokens, positions, sequences, tails, lineage, ranks)


def tree_tails(
    positions: Tensor, depth: Tensor, slots: Tensor, oldest_first: Tensor, tail_length: int
) -> Tensor:
    """Return the slots of the last D tokens up to each row of a tree: int64 [B, T, D].

    `positions`, `depth` and `slots` are int64 [B, T] by row, with depth 0 for padding;
    `oldest_first` int64 [B, T, P] are each row's ancestors by row number, the row itself last.
    """
    rows, path = oldest_first.shape[1:]
    committed = positions.unsqueeze(2) + arange_cached(1 - tail_length, 1, positions.device)
    path_slots = slots.unsqueeze(1).expand(-1, rows, -1).gather(2, oldest_first)
    back = arange_cached(1 - path, 1, positions.device)
    on_path = torch.where(depth.unsqueeze(2) + back > 0, path_slots, committed[..., -path:])
    return torch.cat((committed[..., :-path], on_path), dim=2).clamp(min=NO_SLOT)


@cache
def node_slots(rows: int, tail_length: int, device: torch.device) -> Tensor:
    """Return the slots of a tree's rows, counted from the bonus token's slot: int64 [T]."""
    return torch.tensor([0, *range(tail_length, tail_length + rows - 1)], device=device)


def rows_after(
    bonus: Tensor,
    first: Tensor,
    sequences: Tensor,
    draft: Draft,
    tail_length: int,
    limits: DraftLimits | None = None,
) -> StepRows:
    """Return the rows of a chain or a tree after the bonus tokens int64 [B, 1]; see `tree_rows`."""
    if draft.parents is not None:
        return tree_rows(bonus, first, sequences, draft, tail_length, limits)
    further = None if limits is None else limits.depth
    return chain_rows(bonus, first, sequences, tail_length, further, draft.tokens)
