"""A drafter that knows the text's continuation, and drafts a chosen number of right tokens."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Ranks, Shape
from eagle_aot.runtime_runner.decode.step import Draft

PADDING = 64  # tokens after the end that a round may read


class ScriptedDrafter:
    """Drafts some right tokens of a prompt's continuation, then wrong ones.

    In a tree the right tokens lie on one path of changing ranks; all others are wrong.
    `right(decided)` returns how many leading drafts of a round are right, int64 [1], for the number
    of decided tokens of the continuation, int64 [1]. All of it stays on the device, so that a round
    with this drafter can be recorded.
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
        self.decided = torch.zeros(1, dtype=torch.int64, device=device)

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Count the accepted tokens and the bonus token as decided."""
        self.decided.copy_(accepted.bonus_position + accepted.count + 2 - self.prompt_tokens)

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """Return a chain or tree, tokens int64 [1, N]."""
        nodes = nodes_of(shape, self.decided.device)
        index = (self.decided + nodes.depths).clamp_max(len(self.continuation) - 1)
        next_tokens = self.continuation.index_select(0, index)
        # No two drafts with one parent are the same token.
        below, above = next_tokens - 1 - nodes.ranks, next_tokens + 1 + nodes.ranks
        right = nodes.on_path & (nodes.depths < self.right(self.decided))
        wrong = torch.where(below >= 0, below, above)
        tokens = torch.where(right, next_tokens, wrong).unsqueeze(0)
        if shape.is_chain:
            return Draft(tokens)
        return Draft(tokens, nodes.parents.unsqueeze(0), nodes.ranks.unsqueeze(0), shape.depth)


class ScriptedNodes(NamedTuple):
    """A shape's drafts: the number of drafts before each on its path, its rank among its siblings
    and its parent's row, int64 [N] each, and whether it is on the right path, bool [N]."""

    depths: Tensor
    ranks: Tensor
    parents: Tensor
    on_path: Tensor


@cache
def nodes_of(shape: Shape, device: torch.device) -> ScriptedNodes:
    """Return the same tensors each time, so that a recorded round need not make them."""
    right_path, paths = script(shape)
    rows = {path: row for row, path in enumerate([(), *paths])}
    return ScriptedNodes(
        depths=torch.tensor([len(path) - 1 for path in paths], device=device),
        ranks=torch.tensor([path[-1] for path in paths], device=device),
        parents=torch.tensor([rows[path[:-1]] for path in paths], device=device),
        on_path=torch.tensor([path == right_path[: len(path)] for path in paths], device=device),
    )


def script(shape: Shape) -> tuple[Ranks, list[Ranks]]:
    """Return a path through a tree, and all nodes of the tree, parents first.

    The nodes are the shape's own, or those of the path, their siblings, and the siblings' children,
    up to the shape's number of nodes.
    """
    if shape.paths is not None:
        return max(shape.paths, key=len), list(shape.paths)
    right_path = tuple((depth + 1) % shape.topk for depth in range(shape.depth))
    nodes = dict.fromkeys(right_path[:depth] for depth in range(1, shape.depth + 1))
    while len(nodes) < shape.nodes:
        parents = [(), *(path for path in nodes if len(path) < shape.depth)]
        children = ((*path, rank) for path in parents for rank in range(shape.topk))
        new = (path for path in children if path not in nodes)
        nodes |= dict.fromkeys(islice(new, shape.nodes - len(nodes)))
    return right_path, sorted(nodes, key=len)
