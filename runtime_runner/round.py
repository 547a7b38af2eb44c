"""One round of speculative decoding, where the tensors are.

Every shape is fixed by the number of sequences and of drafts, and nothing is read back to the host,
so that a round can be recorded once and replayed at any position of the texts.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.runtime_runner.acceptance import Accepted, accept
from eagle_aot.runtime_runner.executors import Call
from eagle_aot.runtime_runner.sampling import greedy
from eagle_aot.runtime_runner.step import Draft, rows_behind
from eagle_aot.runtime_runner.target import Target, no_moves


class Running:
    """The sequences of a round, between two rounds; in the same tensors for good.

    `bonus` int64 [B, 1] is the token that is decided but in no cache yet, `position` int64 [B] its
    place, -1 for a sequence that only fills its place. `sequences` int64 [B] are the caches they
    use, each another one. `moves` int64 [B, D] are the slots of the D tokens before the bonus
    where they do not lie in those of their positions, else -1. `wanted` int64 [B] is how many
    drafts each takes at most, which a round of one sequence does not ask.
    """

    def __init__(self, sequences: Sequence[int], tail: int, device: torch.device | str) -> None:
        batch = len(sequences)
        self.sequences = torch.tensor(list(sequences), dtype=torch.int64, device=device)
        self.bonus = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.position = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.moves = no_moves(batch, tail, device)
        self.wanted = torch.full_like(self.sequences, tail - 1)

    def __len__(self) -> int:
        return len(self.sequences)

    def first(self, count: int) -> "Running":
        """Those at the first `count` indices, in the same memory."""
        part = copy.copy(self)
        for name, tensor in vars(self).items():
            setattr(part, name, tensor[:count])
        return part

    def swap(self, index: int, other: int) -> None:
        """Let two sequences change places."""
        for tensor in vars(self).values():
            tensor[[index, other]] = tensor[[other, index]]

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Let all of them only fill their places for a while."""
        before = {name: tensor.clone() for name, tensor in vars(self).items()}
        self.position.fill_(-1)
        self.moves.fill_(-1)
        try:
            yield
        finally:
            for name, tensor in before.items():
                getattr(self, name).copy_(tensor)

    def place(self, bonus: Tensor, position: int, index: int = 0) -> None:
        """Let the sequence at `index` go on from `bonus` int64 [1, 1], the token at `position`."""
        self.bonus[index : index + 1].copy_(bonus)
        self.position[index : index + 1].fill_(position)
        self.moves[index : index + 1].fill_(-1)

    def stop(self, index: int) -> None:
        """Let the sequence at `index` only fill its place from now on."""
        self.position[index : index + 1].fill_(-1)
        self.moves[index : index + 1].fill_(-1)

    def advance(self, accepted: Accepted, *, scattered: bool) -> None:
        """Go on behind what was accepted; `scattered` tells a tree's path from a chain's."""
        live = accepted.first >= 0
        self.bonus.copy_(accepted.last_token)
        self.position.copy_(torch.where(live, accepted.first + accepted.count + 1, -1))
        if scattered:
            self.moves.copy_(path_slots(accepted, self.moves.shape[1]))
        else:
            self.moves.fill_(-1)


def path_slots(accepted: Accepted, tail: int) -> Tensor:
    """Slots of the last D tokens of the text, int64 [B, D]; -1 for those in front of the path."""
    entry = accepted.count.unsqueeze(1) - torch.arange(
        tail - 1, -1, -1, device=accepted.count.device
    )
    inside = (entry >= 0) & (accepted.first >= 0).unsqueeze(1)
    return torch.where(inside, accepted.slots.gather(1, entry.clamp(min=0)), -1)


class Drafter(Protocol):
    """Guesses how texts go on."""

    def propose(self, running: Running, count: int) -> Draft:
        """`count` drafts behind each sequence's bonus token."""

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """What became of a step, or of a prompt's chunk: features [B, T, H] are by row."""


class Round:
    """Draft, verify, accept, reseed: the step from one state to the next.

    Rounds with the same running sequences and drafter continue one another's texts, whatever their
    chain lengths. A chain length of 0 is plain decoding. `play` is `step`, or a recording of it.
    """

    def __init__(
        self, target: Target, drafter: Drafter | None, chain_len: int, running: Running
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.chain_len = chain_len if drafter else 0
        self.running = running
        self.play: Call = self.step

    @property
    def device(self) -> torch.device:
        """Where the running sequences are."""
        return self.running.bonus.device

    def step(self) -> Tensor:
        """One verify forward.

        Returns int64 [B, P + 1]: how many drafts a were accepted, then the tokens of the path, of
        which the first a + 1 continue the text.
        """
        running = self.running
        draft = Draft(running.bonus[:, :0])
        if self.drafter and self.chain_len:
            draft = self.drafter.propose(running, self.chain_len)
        where = running.position, running.sequences
        wanted = running.wanted if len(running) > 1 else None
        step = rows_behind(running.bonus, *where, draft, self.target.tail, wanted)
        logits, features = self.target.verify(step, running.moves)
        accepted = accept(step, greedy(logits))
        if self.drafter:
            self.drafter.observe(accepted, features)
        running.advance(accepted, scattered=step.lineage is not None)
        return torch.cat((accepted.count.unsqueeze(1), accepted.tokens), dim=1)
