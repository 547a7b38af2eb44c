"""The rows of a round as tensors: a chain or a tree of drafts behind each sequence's bonus token.

Everything is computed on the device from tensors of fixed shapes. Shapes: B sequences, N drafts
each, D the artifact's `tail`.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

NOWHERE = -1
"""The position, and the slot, of what only fills a place."""


@dataclass(frozen=True, slots=True)
class Draft:
    """`tokens` int64 [B, N]; of a tree `parents` int64 [B, N], the row of the token before each, 0
    for the bonus and i + 1 for draft i, always an earlier row, and `ranks` int64 [B, N] among the
    drafts behind the same token, `depth` on one path at most; all None for a chain. `scores`
    float64 [B, N] are the drafter's log probabilities of paths, where it tells them."""

    tokens: Tensor
    parents: Tensor | None = None
    ranks: Tensor | None = None
    depth: int | None = None
    scores: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step method takes: `tokens`, `positions` int64 [B, T], `sequences` int64 [B], `tail`
    int64 [B, T, D]. Of a tree, `lineage` int64 [P, B, T] are each row's ancestors by row, itself
    first and the bonus, row 0, once there is none left, P as many as the longest path has, and
    `ranks` int64 [B, T] those among the drafts behind the same row; both None for a chain."""

    tokens: Tensor
    positions: Tensor
    sequences: Tensor
    tail: Tensor
    lineage: Tensor | None = None
    ranks: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order of a method's signature."""
        return self.tokens, self.positions, self.sequences, self.tail


def chain_rows(
    tokens: Tensor, first: Tensor, sequences: Tensor, tail: int, used: Tensor | None = None
) -> StepRows:
    """Consecutive rows in the slots of their positions.

    tokens int64 [B, T]; first int64 [B], where each sequence's first row stands, negative for a
    sequence that only fills its place; used int64 [B], how many rows count, all where it is None.
    """
    first = first.unsqueeze(1)
    if tokens.shape[1] == 1:  # used or not: the first row always is
        positions = first.clamp(min=-1)
        return StepRows(tokens, positions, sequences, chain_tail(positions, tail))
    step = arange_cached(0, tokens.shape[1], tokens.device)
    live = first >= 0 if used is None else (first >= 0) & (step < used.unsqueeze(1))
    positions = masked(live, first + step)
    return StepRows(tokens, positions, sequences, chain_tail(positions, tail))


def chain_tail(positions: Tensor, tail: int) -> Tensor:
    """Slots of the last D positions up to each one: int64 [B, T] -> [B, T, D]."""
    back = arange_cached(1 - tail, 1, positions.device)
    return (positions.unsqueeze(-1) + back).clamp(min=-1)


def paths_of(step: StepRows) -> Tensor:
    """The drafts on each row's path, its own first: int64 [B, T, P], -1 where there are no more."""
    count = step.tokens.shape[1]
    if step.lineage is None:
        rows = arange_cached(0, count, step.tokens.device)
        own = (rows.unsqueeze(1) - rows[:-1]).clamp(min=0).expand(len(step.tokens), -1, -1)
    else:
        own = step.lineage[:-1].permute(1, 2, 0)  # the last is the bonus in any case
    tokens = step.tokens.unsqueeze(1).expand(-1, count, -1).gather(2, own)
    return torch.where(own > 0, tokens, -1)


@cache
def arange_cached(start: int, end: int, device: torch.device) -> Tensor:
    """int64 [end - start], ascending: one tensor, so that a recorded round need not make it."""
    return torch.arange(start, end, device=device)


def masked(live: Tensor, places: Tensor) -> Tensor:
    """Places int64 where they are `live`, a bool of a shape that goes with theirs."""
    return torch.where(live, places, arange_cached(NOWHERE, 0, places.device))


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What each sequence takes of a draft: `depth` tokens deep at most and `topk` behind one, int64
    [B]."""

    depth: Tensor
    topk: Tensor


def tree_rows(
    bonus: Tensor,
    first: Tensor,
    sequences: Tensor,
    draft: Draft,
    tail: int,
    wanted: DraftLimits | None = None,
) -> StepRows:
    """A tree of drafts behind `bonus` int64 [B, 1], which stands at `first` int64 [B]; what is not
    wanted becomes padding.

    Nodes lie behind all slots that a path of theirs may be moved to: a move never writes what
    another one reads.
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
    live = first.unsqueeze(1) >= 0
    if wanted is not None:
        narrow = (ranks < wanted.topk.unsqueeze(1)) | (depth == 0)
        narrow = narrow.expand_as(lineage).gather(2, lineage).all(dim=0)
        live = live & narrow & (depth <= wanted.depth.unsqueeze(1))
    positions = masked(live, first.unsqueeze(1) + depth)
    tokens = torch.cat((bonus, draft.tokens), dim=1)
    slots = first.unsqueeze(1) + node_slots(parents.shape[1], tail, device)
    tails = tree_tails(positions, depth * live, slots, torch.stack(steps[::-1], dim=2), tail)
    return StepRows(tokens, positions, sequences, tails, lineage, ranks)


def tree_tails(
    positions: Tensor, depth: Tensor, slots: Tensor, oldest_first: Tensor, tail: int
) -> Tensor:
    """Slots of the last D tokens up to each row of a tree: int64 [B, T, D].

    `positions`, `depth` and `slots` int64 [B, T] are the rows' own, the depth 0 where a row only
    fills its place; `oldest_first` int64 [B, T, P] are each row's ancestors, itself last.
    """
    rows, path = oldest_first.shape[1:]
    committed = positions.unsqueeze(2) + arange_cached(1 - tail, 1, positions.device)
    own = slots.unsqueeze(1).expand(-1, rows, -1).gather(2, oldest_first)
    back = arange_cached(1 - path, 1, positions.device)
    on_path = torch.where(depth.unsqueeze(2) + back > 0, own, committed[..., -path:])
    return torch.cat((committed[..., :-path], on_path), dim=2).clamp(min=NOWHERE)


@cache
def node_slots(rows: int, tail: int, device: torch.device) -> Tensor:
    """Where the rows of a tree lie, counted from the bonus token's slot: int64 [T]."""
    return torch.tensor([0, *range(tail, tail + rows - 1)], device=device)


def rows_after(
    bonus: Tensor,
    first: Tensor,
    sequences: Tensor,
    draft: Draft,
    tail: int,
    wanted: DraftLimits | None = None,
) -> StepRows:
    """A draft of either kind behind the bonus tokens, as `tree_rows` takes them; all of it is
    wanted where `wanted` is None."""
    if draft.parents is not None:
        return tree_rows(bonus, first, sequences, draft, tail, wanted)
    used = None if wanted is None else wanted.depth + 1
    return chain_rows(torch.cat((bonus, draft.tokens), dim=1), first, sequences, tail, used)
