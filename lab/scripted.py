"""A drafter that knows how the text goes on, and is wrong when told to be."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Ranks, Shape
from eagle_aot.runtime_runner.decode.step import Draft

PADDING = 64  # a round may look that far behind the end


class ScriptedDrafter:
    """Proposes the given continuation of a prompt up to a number of right tokens, then wrong ones.
    Of a tree the right ones are on one path, of changing ranks, and all others are wrong.

    `right(known)` says how many leading drafts of a round are right, int64 [1], from the number of
    tokens of the continuation that are known, int64 [1]. All of it stays on the device, so that a
    round with this drafter can be recorded.
    """

    def __init__(
        self,
        prompt_tokens: int,
        continuation: Sequence[int],
        right: Callable[[Tensor], Tensor],
        device: torch.device | str = "cpu",
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.continuation = torch.tensor([*continuation, *[0] * PADDING], device=device)
        self.right = right
        self.known = torch.zeros(1, dtype=torch.int64, device=device)

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """The token behind the last accepted one is known now."""
        self.known.copy_(accepted.first + accepted.count + 2 - self.prompt_tokens)

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """Of either kind."""
        nodes = nodes_of(shape, self.known.device)
        place = (self.known + nodes.depths).clamp_max(len(self.continuation) - 1)
        following = self.continuation.index_select(0, place)
        # No two drafts behind one token are alike.
        below, above = following - 1 - nodes.ranks, following + 1 + nodes.ranks
        right = nodes.chosen & (nodes.depths < self.right(self.known))
        wrong = torch.where(below >= 0, below, above)
        tokens = torch.where(right, following, wrong).unsqueeze(0)
        if shape.is_chain:
            return Draft(tokens)
        return Draft(tokens, nodes.parents.unsqueeze(0), nodes.ranks.unsqueeze(0), shape.depth)


class Nodes(NamedTuple):
    """Of a shape's drafts, int64 [N] each: how many are before one on its path, its rank behind its
    parent, and the parent's row; and whether it is on the chosen path, bool [N]."""

    depths: Tensor
    ranks: Tensor
    parents: Tensor
    chosen: Tensor


@cache
def nodes_of(shape: Shape, device: torch.device) -> Nodes:
    """The same tensors each time, so that a recorded round need not make them."""
    chosen, paths = script(shape)
    rows = {path: row for row, path in enumerate([(), *paths])}
    numbers = zip(*((len(path) - 1, path[-1], rows[path[:-1]]) for path in paths), strict=True)
    on_path = [path == chosen[: len(path)] for path in paths]
    return Nodes(*(torch.tensor(x, device=device) for x in (*numbers, on_path)))


def script(shape: Shape) -> tuple[Ranks, list[Ranks]]:
    """A path through a tree, and all nodes of the tree, parents first: the shape's own, or those of
    the path, their siblings, and of these the children, as many as there shall be."""
    if shape.paths is not None:
        return max(shape.paths, key=len), list(shape.paths)
    chosen = tuple((depth + 1) % shape.topk for depth in range(shape.depth))
    known = dict.fromkeys(chosen[:depth] for depth in range(1, shape.depth + 1))
    while len(known) < shape.nodes:
        parents = [(), *(path for path in known if len(path) < shape.depth)]
        children = ((*path, rank) for path in parents for rank in range(shape.topk))
        new = (path for path in children if path not in known)
        known |= dict.fromkeys(islice(new, shape.nodes - len(known)))
    return chosen, sorted(known, key=len)
