"""Growing a tree of drafts, depth by depth, out of what a head finds likely.

Shapes: B sequences, F nodes that are gone on from at a depth, k drafts behind each. All of them are
fixed by the tree's shape, and nothing is read back to the host, so that a round can be recorded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from eagle_aot.runtime_runner.rounds.shape import Ranks, Shape
from eagle_aot.runtime_runner.rounds.step import Draft, StepRows, numbers

ROOT = -1
"""The parent of the first drafts."""


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
    """Drafts that may be taken, M of each sequence: `tokens`, `parents` (nodes, or `ROOT`) and
    `ranks` among siblings int64 [B, M], and `scores` float32 [B, M], log probabilities of paths."""

    tokens: Tensor
    parents: Tensor
    ranks: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return self.tokens.shape[1]

    def __add__(self, more: "Nodes") -> "Nodes":
        names = [field.name for field in fields(self)]
        return Nodes(*(torch.cat((getattr(self, n), getattr(more, n)), dim=1) for n in names))

    @classmethod
    def behind(cls, parents: Tensor, scores: Tensor, found: Expanded) -> "Nodes":
        """The F x k behind `parents` int64 [B, F], whose paths score `scores` float32 [B, F].

        A node scores less than its parent in any case, also where that is all but certain of it:
        so whatever is taken by score has its parent taken as well.
        """
        before = scores.unsqueeze(-1)
        below = torch.nextafter(before, torch.full_like(before, -torch.inf))
        topk = found.tokens.shape[2]
        return cls(
            found.tokens.flatten(1),
            parents.repeat_interleave(topk, dim=1),
            numbers(0, topk, parents.device).expand_as(found.tokens).flatten(1),
            torch.minimum(before + found.scores, below).flatten(1),
        )

    def drafted(self, places: Tensor, depth: int) -> Draft:
        """Those at `places` int64 [B, N], ascending and each with its parent."""
        rows = torch.zeros_like(self.parents)
        rows.scatter_(1, places, numbers(1, places.shape[1] + 1, places.device).expand_as(places))
        parents = self.parents.gather(1, places)
        before = torch.where(parents == ROOT, 0, rows.gather(1, parents.clamp(min=0)))
        tokens, ranks, scores = (
            of_nodes.gather(1, places) for of_nodes in (self.tokens, self.ranks, self.scores)
        )
        return Draft(tokens, before, ranks, depth, scores)


@dataclass(frozen=True, slots=True)
class Trunk:
    """Where trees stand: `position` int64 [B] of the token that they follow, negative for a
    sequence that only fills its place, `sequences` int64 [B], and the program's `tail`."""

    position: Tensor
    sequences: Tensor
    tail: int

    def rows(self, tokens: Tensor, slots: Tensor) -> StepRows:
        """Nodes at one depth d of the head's own, whose paths lie in `slots` int64 [B, F, d]: in
        front of them, tokens lie in the slots of their positions."""
        depth = slots.shape[2]
        positions = torch.where(self.position < 0, -1, self.position + depth - 1)
        committed = self.position.unsqueeze(1) + numbers(depth - self.tail, 0, slots.device)
        width = tokens.shape[1]
        tail = torch.cat((committed.unsqueeze(1).expand(-1, width, -1), slots), dim=2)
        tail = torch.where(self.position.view(-1, 1, 1) < 0, -1, tail.clamp(min=-1))
        return StepRows(tokens, positions.unsqueeze(1).expand_as(tokens), self.sequences, tail)


@dataclass(slots=True)
class Growth:
    """A tree on its way: all `nodes` so far, of which the last `newest` were found last, and of
    their F parents the recurrent `features` [B, F, H] and `slots` int64 [B, F, d], the head's own
    of the path, of which `used` are taken by the whole tree."""

    trunk: Trunk
    nodes: Nodes
    newest: Nodes
    features: Tensor
    slots: Tensor
    used: int = 0

    @classmethod
    def begin(cls, trunk: Trunk, first: Expanded) -> "Growth":
        """`first` is what the head says in front of the trunk's token, F = 1."""
        root = torch.full_like(trunk.sequences, ROOT).unsqueeze(1)
        nodes = Nodes.behind(root, torch.zeros_like(root, dtype=first.scores.dtype), first)
        return cls(trunk, nodes, nodes, first.features, root.unsqueeze(2)[..., :0])

    def go_on(self, best: Tensor, topk: int, expand: Expand) -> None:
        """Let the head go on from the nodes at `best` int64 [B, F] among the newest."""
        parent = (best // (len(self.newest) // self.slots.shape[1])).unsqueeze(2)
        features = self.features.gather(1, parent.expand(-1, -1, self.features.shape[2]))
        before = self.slots.gather(1, parent.expand(-1, -1, self.slots.shape[2]))
        own = numbers(self.used, self.used + best.shape[1], best.device)
        own = (self.trunk.position.unsqueeze(1) + own).unsqueeze(2)
        self.slots = torch.cat((before, own), dim=2)
        rows = self.trunk.rows(self.newest.tokens.gather(1, best), self.slots)
        found = expand(rows, features, topk)
        places = best + (len(self.nodes) - len(self.newest))
        self.newest = Nodes.behind(places, self.newest.scores.gather(1, best), found)
        self.nodes, self.features = self.nodes + self.newest, found.features
        self.used += best.shape[1]


def grow_likely(shape: Shape, trunk: Trunk, first: Expanded, expand: Expand) -> Draft:
    """The tree of the nodes that the head finds likeliest. Of `first` there are `topk` tokens."""
    growth = Growth.begin(trunk, first)
    for _ in range(shape.depth - 1):
        best = growth.newest.scores.topk(shape.topk, dim=1).indices
        growth.go_on(best, shape.topk, expand)
    places = growth.nodes.scores.topk(shape.nodes, dim=1).indices
    return growth.nodes.drafted(places.sort(dim=1).values, shape.depth)


def grow_paths(shape: Shape, trunk: Trunk, first: Expanded, expand: Expand) -> Draft:
    """The tree of a shape's own paths. Of `first` there are `topk` tokens."""
    growth, batch = Growth.begin(trunk, first), len(trunk.sequences)
    for best in parents_by_depth(shape):
        growth.go_on(places_of(best, trunk.sequences.device).expand(batch, -1), shape.topk, expand)
    taken = places_of(nodes_by_depth(shape), trunk.sequences.device)
    return growth.nodes.drafted(taken.expand(batch, -1), shape.depth)


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
