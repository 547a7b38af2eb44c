"""The state of a batch between two rounds."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.shape import MAX_TOPK, Shape
from eagle_aot.runtime_runner.decode.step import masked
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.triton_kernels.device import launches_for


class BatchState:
    """The state of B sequences between two rounds, always in the same tensors.

    `bonus` int64 [B, 1] is the token that is decided but not in the cache yet, and `position` int64
    [B] its position, -1 for padding. `sequences` int64 [B] are the caches that they use, all
    different. `moves` int64 [B, D] are the slots of the D tokens before the bonus where these are
    not the slots of their positions, else -1. `depth` and `topk` int64 [B] limit each sequence's
    drafts; a round of one sequence ignores them. `sampler` chooses each sequence's tokens.
    """

    def __init__(
        self,
        sequences: Sequence[int],
        tail_length: int,
        device: torch.device | str,
        sampler: Sampler | None = None,
    ) -> None:
        batch = len(sequences)
        self.sampler = sampler or Sampler(max(sequences) + 1, device)
        self.sequences = torch.tensor(list(sequences), dtype=torch.int64, device=device)
        self.bonus = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.position = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.moves = no_moves(batch, tail_length, device)
        self.depth = torch.full_like(self.sequences, tail_length - 1)
        self.topk = torch.full_like(self.sequences, MAX_TOPK)

    def __len__(self) -> int:
        return len(self.sequences)

    def narrow(self, count: int) -> "BatchState":
        """Return the first `count` sequences, in the same memory."""
        part = copy.copy(self)
        for name, tensor in self.tensors().items():
            setattr(part, name, tensor[:count])
        return part

    def swap(self, index: int, other: int) -> None:
        """Swap two sequences."""
        for tensor in self.tensors().values():
            tensor[[index, other]] = tensor[[other, index]]

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Make all sequences padding for the duration of the context."""
        before = {name: tensor.clone() for name, tensor in self.tensors().items()}
        self.position.fill_(-1)
        self.moves.fill_(-1)
        try:
            yield
        finally:
            for name, tensor in before.items():
                getattr(self, name).copy_(tensor)

    def place(self, bonus: Tensor, position: int, index: int = 0) -> None:
        """Set the sequence at `index` to continue from `bonus` int64 [1, 1] at `position`."""
        self.bonus[index : index + 1].copy_(bonus)
        self.position[index : index + 1].fill_(position)
        self.moves[index : index + 1].fill_(-1)

    def limit_drafts(self, shape: Shape | None, index: int) -> None:
        """Limit the drafts of the sequence at `index` to the depth and width of `shape`."""
        longest = self.moves.shape[1] - 1
        self.depth[index] = longest if shape is None else shape.depth
        self.topk[index] = MAX_TOPK if shape is None else shape.topk

    def stop(self, index: int) -> None:
        """Make the sequence at `index` padding."""
        self.position[index : index + 1].fill_(-1)
        self.moves[index : index + 1].fill_(-1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, by name."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def advance(self, accepted: Accepted, *, scattered: bool) -> None:
        """Continue after the accepted path, which is `scattered` over slots if it is a tree's."""
        tokens, count, first = accepted.tokens, accepted.count, accepted.bonus_position
        if launches_for(tokens):
            from eagle_aot.triton_kernels.chain_rows import launch_advance

            launch_advance(tokens, count, first, self.bonus, self.position, self.moves)
        else:
            torch.gather(tokens, 1, count.unsqueeze(1), out=self.bonus)
            masked(first >= 0, first + count + 1, out=self.position)
            self.moves.fill_(-1)
        if scattered:
            self.moves.copy_(path_slots(accepted, self.moves.shape[1]))


def path_slots(accepted: Accepted, tail_length: int) -> Tensor:
    """Return the slots of the last D tokens, int64 [B, D]; -1 for those before the path."""
    entry = accepted.count.unsqueeze(1) + arange_cached(1 - tail_length, 1, accepted.count.device)
    inside = (entry >= 0) & (accepted.bonus_position >= 0).unsqueeze(1)
    return masked(inside, accepted.slots.gather(1, entry.clamp(min=0)))
