"""Grow a tree of drafts, depth by depth, from the head's most likely tokens.

Shapes: B sequences, F nodes that are expanded at a depth, k children of each. The tree's shape
fixes all of them, and nothing is read back to the host, so that a round can be recorded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.shape import Ranks, Shape
from eagle_aot.runtime_runner.decode.step import NO_SLOT, Draft, StepRows, masked

LEAST_LOSS = 1e-6
"""How far a node's score is at least below its parent's, even where the head is almost certain: so
a selection by score that contains a node contains its parent. Scores are float64, in which adding
log probabilities does not round this away."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """What the head predicts after F rows: the most likely `tokens` int64 [B, F, k], their log
    probabilities `scores` float32 [B, F, k], and recurrent `features` [B, F, H]."""

    tokens: Tensor
    scores: Tensor
    features: Tensor


Expand = Callable[[StepRows, Tensor, int], Expanded]
"""Runs rows with their features [B, F, H]; returns the given number of tokens after each row."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The children of F nodes.

    `tokens` int64 [B, F k]; `scores` float64 [B, F k], the log probabilities of their paths;
    `parents` int64 [B, F], the numbers of the F nodes among all nodes, which are counted from 1 in
    the order in which they were added; 0 is the root.
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor

    @classmethod
    def children(cls, parents: Tensor, scores: Tensor, expanded: Expanded) -> "Nodes":
        """Return the children of `parents` int64 [B, F], whose paths have `scores` float64
        [B, F]."""
        below = scores.unsqueeze(2) + expanded.scores.clamp(max=-LEAST_LOSS)
        return cls(expanded.tokens.flatten(1), below.flatten(1), parents)


@dataclass(frozen=True, slots=True)
class Trunk:
    """Where the trees begin: `position` int64 [B] of the token before each, negative for a padding
    sequence, `sequences` int64 [B], and the program's `tail_length`."""

    position: Tensor
    sequences: Tensor
    tail_length: int

    def ahead(self, count: int) -> Tensor:
        """Return `count` positions from the trunk's on, int64 [B, count]."""
        positions = self.position.unsqueeze(1) + arange_cached(0, count, self.position.device)
        return masked(self.position.unsqueeze(1) >= 0, positions)

    def tail_slots(self) -> Tensor:
        """Return the slots of the D tokens before the trunk's, int64 [B, 1, D]: those of their
        positions."""
        back = arange_cached(-self.tail_length, 0, self.position.device)
        return (self.position.unsqueeze(1) + back).clamp(min=NO_SLOT).unsqueeze(1)


@dataclass(slots=True)
class Growth:
    """A growing tree: the nodes of each depth in `levels`, `topk` children of each expanded node.

    Of the F nodes that were expanded last, `features` [B, F, H] are the recurrent features and
    `tails` int64 [B, F, D] the slots of their paths. An expanded node takes the next of the head's
    `slots` int64 [B, S].
    """

    trunk: Trunk
    topk: int
    slots: Tensor
    levels: list[Nodes]
    features: Tensor
    tails: Tensor

    @classmethod
    def begin(cls, trunk: Trunk, shape: Shape, first: Expanded) -> "Growth":
        """Start from `first`, what the head predicts after the trunk's token, F = 1."""
        slots = trunk.ahead(max(shape.head_rows, shape.depth))
        root = arange_cached(0, 1, slots.device).expand(len(slots), 1)
        nodes = Nodes.children(root, root.double(), first)
        return cls(trunk, shape.topk, slots, [nodes], first.features, trunk.tail_slots())

    def likeliest(self) -> tuple[Tensor, Tensor]:
        """Return the indices int64 [B, k] of the best nodes of the last level, and their scores
        float64 [B, k]."""
        scores, best = self.levels[-1].scores.topk(self.topk, dim=1)
        return best, scores

    def add_level(self, best: Tensor, scores: Tensor, expand: Expand) -> None:
        """Expand the nodes at `best` int64 [B, F] of the last level, which have `scores` float64
        [B, F]."""
        newest, depth, count = self.levels[-1], len(self.levels), best.shape[1]
        before = 1 + sum(nodes.tokens.shape[1] for nodes in self.levels[:-1])
        used = sum(nodes.parents.shape[1] for nodes in self.levels[1:])
        parent = (best // self.topk).unsqueeze(2)
        features = self.features.gather(1, parent.expand(-1, -1, self.features.shape[2]))
        path = self.tails.gather(1, parent.expand(-1, -1, self.tails.shape[2]))
        slots = self.slots[:, used : used + count].unsqueeze(2)
        self.tails = torch.cat((path[..., 1:], slots), dim=2)
        positions = self.slots[:, depth - 1 : depth].expand_as(best)
        rows = StepRows(newest.tokens.gather(1, best), positions, self.trunk.sequences, self.tails)
        expanded = expand(rows, features, self.topk)
        self.levels.append(Nodes.children(best + before, scores, expanded))
        self.features = expanded.features

    def scores(self) -> Tensor:
        """Return the scores of all nodes, float64 [B, M]."""
        return torch.cat([nodes.scores for nodes in self.levels], dim=1)

    def draft(self, selected: Tensor, scores: Tensor) -> Draft:
        """Return the nodes with indices `selected` int64 [B, N] among all nodes, ascending, which
        include each one's parent; they have `scores` float64 [B, N]."""
        tokens = torch.cat([nodes.tokens for nodes in self.levels], dim=1)
        parents = torch.cat([nodes.parents for nodes in self.levels], dim=1)
        rows = tokens.new_zeros(len(tokens), 1 + tokens.shape[1])
        numbers = arange_cached(1, selected.shape[1] + 1, selected.device).expand_as(selected)
        rows.scatter_(1, selected + 1, numbers)
        before = rows.gather(1, parents.gather(1, selected // self.topk))
        ranks = selected % self.topk
        return Draft(tokens.gather(1, selected), before, ranks, len(self.levels), scores)


def grow_likely(shape: Shape, trunk: Trunk, first: Expanded, expand: Expand) -> Draft:
    """Return the tree of the nodes that the head finds most likely. `first` has `topk` tokens."""
    growth = Growth.begin(trunk, shape, first)
    for _ in range(shape.depth - 1):
        best, best_scores = growth.likeliest()
        growth.add_level(best, best_scores, expand)
    scores = growth.scores()
    selected = scores.topk(shape.nodes, dim=1, sorted=False).indices.sort(dim=1).values
    return growth.draft(selected, scores.gather(1, selected))


def grow_paths(shape: Shape, trunk: Trunk, first: Expanded, expand: Expand) -> Draft:
    """Return the tree that has the shape's own paths. `first` has `topk` tokens."""
    growth, batch = Growth.begin(trunk, shape, first), len(trunk.sequences)
    for parents in parents_by_depth(shape):
        best = index_tensor(parents, trunk.sequences.device).expand(batch, -1)
        growth.add_level(best, growth.levels[-1].scores.gather(1, best), expand)
    selected = index_tensor(nodes_by_depth(shape), trunk.sequences.device).expand(batch, -1)
    return growth.draft(selected, growth.scores().gather(1, selected))


def parents_by_depth(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield, for each depth but the last, the indices of the nodes that have children."""
    assert shape.paths is not None
    parents = {path[:-1] for path in shape.paths}
    above: list[Ranks] = [()]
    for depth in range(1, shape.depth):
        inner = [path for path in shape.paths if len(path) == depth and path in parents]
        yield tuple(above.index(path[:-1]) * shape.topk + path[-1] for path in inner)
        above = inner


def nodes_by_depth(shape: Shape) -> tuple[int, ...]:
    """Return the indices of the shape's nodes among all nodes that the head expands to."""
    assert shape.paths is not None
    parents = {path[:-1] for path in shape.paths}
    rows = sorted(parents, key=lambda path: (len(path), path))
    return tuple(rows.index(path[:-1]) * shape.topk + path[-1] for path in shape.paths)


@cache
def index_tensor(indices: tuple[int, ...], device: torch.device) -> Tensor:
    """Return int64 [1, N], always the same tensor, so that a recorded round need not make it."""
    return torch.tensor([indices], device=device)
