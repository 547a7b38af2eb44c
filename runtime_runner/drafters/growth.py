"""Growing a tree of drafts, depth by depth, out of what a head finds likely.

Shapes: B sequences, F nodes that are gone on from at a depth, k drafts behind each. All of them are
fixed by the tree's shape, and nothing is read back to the host, so that a round can be recorded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.shape import Ranks, Shape
from eagle_aot.runtime_runner.decode.step import NOWHERE, Draft, StepRows, arange_cached, masked

LEAST_LOSS = 1e-6
"""By how much a node's score is below its parent's in any case, also where the head is all but
certain of it: so whatever is taken by score has its parent taken as well. In float64, where a sum
of log probabilities does not swallow it."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """What a head says behind F rows: the most likely `tokens` int64 [B, F, k], their log
    probabilities `scores` float32 [B, F, k], and recurrent `features` [B, F, H]."""

    tokens: Tensor
    scores: Tensor
    features: Tensor


Expand = Callable[[StepRows, Tensor, int], Expanded]
"""Runs rows with the features [B, F, H] that go with them, and tells so many tokens behind each."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Drafts found behind F others: `tokens` int64 [B, F k], `scores` float64 [B, F k], the log
    probabilities of paths, and `parents` int64 [B, F], which of all nodes those others are, counted
    from 1 on in the order found, and 0 for the root."""

    tokens: Tensor
    scores: Tensor
    parents: Tensor

    @classmethod
    def behind(cls, parents: Tensor, scores: Tensor, found: Expanded) -> "Nodes":
        """Behind `parents` int64 [B, F], whose paths score `scores` float64 [B, F]."""
        below = scores.unsqueeze(2) + found.scores.clamp(max=-LEAST_LOSS)
        return cls(found.tokens.flatten(1), below.flatten(1), parents)


@dataclass(frozen=True, slots=True)
class Trunk:
    """Where trees stand: `position` int64 [B] of the token that they follow, negative for a
    sequence that only fills its place, `sequences` int64 [B], and the program's `tail`."""

    position: Tensor
    sequences: Tensor
    tail: int

    def ahead(self, count: int) -> Tensor:
        """The first of the places from the trunk's on: int64 [B, count]."""
        places = self.position.unsqueeze(1) + arange_cached(0, count, self.position.device)
        return masked(self.position.unsqueeze(1) >= 0, places)

    def behind(self) -> Tensor:
        """Slots of the tokens before the trunk's, int64 [B, 1, D]: those of their positions."""
        back = arange_cached(-self.tail, 0, self.position.device)
        return (self.position.unsqueeze(1) + back).clamp(min=NOWHERE).unsqueeze(1)


@dataclass(slots=True)
class Growth:
    """A tree on its way: what was `found` at each depth, `topk` behind each node, and of the F
    nodes gone on from last the recurrent `features` [B, F, H] and `tails` int64 [B, F, D], the
    slots of their paths.

    A node that is gone on from lies in the next of the head's `own` slots int64 [B, S]."""

    trunk: Trunk
    topk: int
    own: Tensor
    found: list[Nodes]
    features: Tensor
    tails: Tensor

    @classmethod
    def begin(cls, trunk: Trunk, shape: Shape, first: Expanded) -> "Growth":
        """`first` is what the head says in front of the trunk's token, F = 1."""
        own = trunk.ahead(max(shape.head_rows, shape.depth))
        root = arange_cached(0, 1, own.device).expand(len(own), 1)
        nodes = Nodes.behind(root, root.double(), first)
        return cls(trunk, shape.topk, own, [nodes], first.features, trunk.behind())

    def likeliest(self) -> tuple[Tensor, Tensor]:
        """Which of the newest nodes score best, int64 [B, k], and their scores."""
        scores, best = self.found[-1].scores.topk(self.topk, dim=1)
        return best, scores

    def go_on(self, best: Tensor, scores: Tensor, expand: Expand) -> None:
        """Let the head go on from the nodes at `best` int64 [B, F] among the newest, which score
        `scores` float64 [B, F]."""
        newest, depth, count = self.found[-1], len(self.found), best.shape[1]
        before = 1 + sum(nodes.tokens.shape[1] for nodes in self.found[:-1])
        used = sum(nodes.parents.shape[1] for nodes in self.found[1:])
        parent = (best // self.topk).unsqueeze(2)
        features = self.features.gather(1, parent.expand(-1, -1, self.features.shape[2]))
        path = self.tails.gather(1, parent.expand(-1, -1, self.tails.shape[2]))
        slots = self.own[:, used : used + count].unsqueeze(2)
        self.tails = torch.cat((path[..., 1:], slots), dim=2)
        positions = self.own[:, depth - 1 : depth].expand_as(best)
        rows = StepRows(newest.tokens.gather(1, best), positions, self.trunk.sequences, self.tails)
        found = expand(rows, features, self.topk)
        self.found.append(Nodes.behind(best + before, scores, found))
        self.features = found.features

    def scores(self) -> Tensor:
        """Of all nodes, float64 [B, M]."""
        return torch.cat([nodes.scores for nodes in self.found], dim=1)

    def drafted(self, places: Tensor, scores: Tensor) -> Draft:
        """The nodes at `places` int64 [B, N] of all, ascending and each with its parent."""
        tokens = torch.cat([nodes.tokens for nodes in self.found], dim=1)
        parents = torch.cat([nodes.parents for nodes in self.found], dim=1)
        rows = tokens.new_zeros(len(tokens), 1 + tokens.shape[1])
        taken = arange_cached(1, places.shape[1] + 1, places.device).expand_as(places)
        rows.scatter_(1, places + 1, taken)
        before = rows.gather(1, parents.gather(1, places // self.topk))
        ranks = places % self.topk
        return Draft(tokens.gather(1, places), before, ranks, len(self.found), scores)


def grow_likely(shape: Shape, trunk: Trunk, first: Expanded, expand: Expand) -> Draft:
    """The tree of the nodes that the head finds likeliest. Of `first` there are `topk` tokens."""
    growth = Growth.begin(trunk, shape, first)
    for _ in range(shape.depth - 1):
        growth.go_on(*growth.likeliest(), expand)
    scores = growth.scores()
    places = scores.topk(shape.nodes, dim=1, sorted=False).indices.sort(dim=1).values
    return growth.drafted(places, scores.gather(1, places))


def grow_paths(shape: Shape, trunk: Trunk, first: Expanded, expand: Expand) -> Draft:
    """The tree of a shape's own paths. Of `first` there are `topk` tokens."""
    growth, batch = Growth.begin(trunk, shape, first), len(trunk.sequences)
    for parents in parents_by_depth(shape):
        best = places_of(parents, trunk.sequences.device).expand(batch, -1)
        growth.go_on(best, growth.found[-1].scores.gather(1, best), expand)
    taken = places_of(nodes_by_depth(shape), trunk.sequences.device).expand(batch, -1)
    return growth.drafted(taken, growth.scores().gather(1, taken))


def parents_by_depth(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Of each depth but the last, which of the nodes found there have children."""
    assert shape.paths is not None
    parents = {path[:-1] for path in shape.paths}
    above: list[Ranks] = [()]
    for depth in range(1, shape.depth):
        inner = [path for path in shape.paths if len(path) == depth and path in parents]
        yield tuple(above.index(path[:-1]) * shape.topk + path[-1] for path in inner)
        above = inner


def nodes_by_depth(shape: Shape) -> tuple[int, ...]:
    """Which of all nodes that are found are the shape's."""
    assert shape.paths is not None
    parents = {path[:-1] for path in shape.paths}
    rows = sorted(parents, key=lambda path: (len(path), path))
    return tuple(rows.index(path[:-1]) * shape.topk + path[-1] for path in shape.paths)


@cache
def places_of(places: tuple[int, ...], device: torch.device) -> Tensor:
    """int64 [1, N]: one tensor, so that a recorded round need not make it."""
    return torch.tensor([places], device=device)
