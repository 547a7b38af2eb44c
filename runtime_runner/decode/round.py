"""One round of speculative decoding: draft, verify, accept, reseed the drafter.

A round runs where the tensors are. Its shapes follow from the number of sequences and of drafts,
and it reads nothing back to the host, so it can be recorded once and replayed at any position.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted, accept
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.shape import MAX_TOPK, Shape
from eagle_aot.runtime_runner.decode.step import (
    Draft,
    DraftLimits,
    StepRows,
    masked,
    paths_of,
    rows_after,
)
from eagle_aot.runtime_runner.decode.target import Target, no_moves
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs, unpack_logprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class BatchState:
    """The state of B sequences between two rounds, always in the same tensors.

    `bonus` int64 [B, 1] is the token that is decided but not in the cache yet, and `position` int64
    [B] its position, -1 for padding. `sequences` int64 [B] are the cache slots that they use, all
    different. `moves` int64 [B, D] are the slots of the D tokens before the bonus where these are
    not the slots of their positions, else -1. `depth` and `topk` int64 [B] limit each sequence's
    drafts; a round of one sequence ignores them. `sampler` chooses each sequence's tokens.
    """

    def __init__(
        self,
        sequences: Sequence[int],
        tail: int,
        device: torch.device | str,
        sampler: Sampler | None = None,
    ) -> None:
        batch = len(sequences)
        self.sampler = sampler or Sampler(max(sequences) + 1, device)
        self.sequences = torch.tensor(list(sequences), dtype=torch.int64, device=device)
        self.bonus = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.position = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.moves = no_moves(batch, tail, device)
        self.depth = torch.full_like(self.sequences, tail - 1)
        self.topk = torch.full_like(self.sequences, MAX_TOPK)

    def __len__(self) -> int:
        return len(self.sequences)

    def first(self, count: int) -> "BatchState":
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
        live = accepted.first >= 0
        self.bonus.copy_(accepted.last_token)
        self.position.copy_(masked(live, accepted.first + accepted.count + 1))
        if scattered:
            self.moves.copy_(path_slots(accepted, self.moves.shape[1]))
        else:
            self.moves.fill_(-1)


def path_slots(accepted: Accepted, tail: int) -> Tensor:
    """Return the slots of the last D tokens, int64 [B, D]; -1 for those before the path."""
    entry = accepted.count.unsqueeze(1) + arange_cached(1 - tail, 1, accepted.count.device)
    inside = (entry >= 0) & (accepted.first >= 0).unsqueeze(1)
    return masked(inside, accepted.slots.gather(1, entry.clamp(min=0)))


class Drafter(Protocol):
    """Proposes draft tokens."""

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return at least one draft token after each sequence's bonus token."""

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Take over the accepted path of a step, or a chunk of a prompt.

        `features` [B, T, H] are the target's, by row.
        """


@runtime_checkable
class StatelessDrafter(Protocol):
    """A drafter without caches of its own: it need not have seen the rows of a reused prefix."""

    def recall(self, tokens: Tensor, sequence: Tensor) -> None:
        """Continue sequence int64 [1], whose cache holds `tokens` int64 [1, T] but the last."""


@runtime_checkable
class ReadsImages(Protocol):
    """A drafter that reads the rows of images in prompts."""

    def observe_images(self, accepted: Accepted, features: Tensor, images: InputEmbeds) -> None:
        """Commit a prompt's chunk in which `images` stand, as `observe` does without images."""


class Outcome(NamedTuple):
    """The result of a round for one sequence, on the host.

    `accepted` drafts were right, so the first `accepted + 1` of `tokens` continue the text. For a
    tree, `drafted` is its number of nodes, `ranks` are the ranks of the path's rows among their
    siblings (the bonus row first), and bit r of an entry of `offered_ranks` is set where that row
    has a child of rank r. `logprobs`, one for each of `tokens`, are there where they were
    requested.
    """

    accepted: int
    tokens: Sequence[int]
    drafted: int | None = None
    ranks: Sequence[int] = ()
    offered_ranks: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()

    @classmethod
    def of_chain(cls, row: list[int]) -> "Outcome":
        """Read one sequence's row of the tensor that a round of chains returns."""
        return cls(row[0], row[1:])

    @classmethod
    def of_tree(cls, row: list[int]) -> "Outcome":
        """Read one sequence's row of the tensor that a round of trees returns."""
        accepted, drafted, *path = row
        third = len(path) // 3
        return cls(accepted, path[:third], drafted, path[third : 2 * third], path[2 * third :])


class Round:
    """Draft, verify, accept, reseed: the step from one batch state to the next.

    Rounds of any shapes may follow each other over the same batch state and drafter. A chain of 0
    is plain decoding. `play` is `step`, or a recording of it.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        shape: Shape | int,
        batch: BatchState,
    ) -> None:
        """Every sequence is drafted `shape`, or a chain of that length."""
        self.target = target
        self.drafter = drafter
        shape = Shape.chain(shape) if isinstance(shape, int) else shape
        self.shape = shape if drafter else Shape.chain(0)
        self.chain_len = self.shape.depth
        self.batch = batch
        self.play: Call = self.step

    @property
    def device(self) -> torch.device:
        """The device of the batch state."""
        return self.batch.bonus.device

    def step(self) -> Tensor:
        """Run one verify forward. Returns int64 [B, N], which `outcomes` reads."""
        batch = self.batch
        draft = Draft(batch.bonus[:, :0])
        if self.drafter and self.shape.nodes:
            draft = self.drafter.propose(batch, self.shape)
            assert (draft.parents is None) == self.shape.is_chain, "a chain where a tree is due"
            draft = self._replace_never_chosen(draft)
        limits = DraftLimits(batch.depth, batch.topk) if len(batch) > 1 else None
        step = rows_after(
            batch.bonus, batch.position, batch.sequences, draft, self.target.tail, limits
        )
        logits, features = self.target.verify(step, batch.moves)
        processed = self._processed(step, logits)
        accepted = accept(step, self._choose(step, processed))
        logprobs = self._logprobs(accepted, logits, processed)
        if self.drafter:
            self.drafter.observe(accepted, features)
        self._count(accepted)
        batch.advance(accepted, scattered=step.lineage is not None)
        columns = [accepted.count.unsqueeze(1), accepted.tokens]
        if accepted.ranks is not None and accepted.offered_ranks is not None:
            drafted = (step.positions[:, 1:] >= 0).sum(dim=1, keepdim=True)
            columns = [columns[0], drafted, accepted.tokens, accepted.ranks, accepted.offered_ranks]
        return torch.cat((*columns, *logprobs), dim=1)

    def _replace_never_chosen(self, draft: Draft) -> Draft:
        """Replace draft tokens that the target never chooses, such as image placeholders."""
        never = self.target.never
        if never is None:
            return draft
        is_never = (draft.tokens.unsqueeze(-1) == never).any(dim=-1)
        return replace(draft, tokens=torch.where(is_never, self.batch.bonus, draft.tokens))

    def _count(self, accepted: Accepted) -> None:
        if self.batch.sampler.mode < SamplingMode.PROCESSED:
            return
        step = arange_cached(0, accepted.tokens.shape[1], accepted.tokens.device)
        decided = (step <= accepted.count.unsqueeze(1)) & (accepted.first >= 0).unsqueeze(1)
        self.batch.sampler.count(accepted.tokens, accepted.sequences, decided)

    def _processed(self, step: StepRows, logits: Tensor) -> Tensor:
        """Apply the logits processors to logits [B, T, V], each row by its own path."""
        sampler = self.batch.sampler
        paths = paths_of(step) if sampler.mode == SamplingMode.PROCESSED else None
        return sampler.processed(logits, step.positions + 1, step.sequences, paths)

    def _choose(self, step: StepRows, processed: Tensor) -> Tensor:
        """Return the target's choice after each row, int64 [B, T], from logits [B, T, V]."""
        return self.batch.sampler.choose(processed, step.positions + 1, step.sequences)

    def _logprobs(self, accepted: Accepted, logits: Tensor, processed: Tensor) -> list[Tensor]:
        """Return packed log probabilities of the path's tokens, if any sequence requested them."""
        sampler = self.batch.sampler
        if not sampler.wants_logprobs:
            return []
        return [
            sampler.logprobs(
                accepted.of_path(logits),
                accepted.of_path(processed),
                accepted.tokens,
                accepted.sequences,
            )
        ]

    def outcomes(self, played: Tensor) -> list[Outcome]:
        """Read the sequences' outcomes from what `play` returned, int64 [B, N], in one copy."""
        read = Outcome.of_chain if self.shape.is_chain else Outcome.of_tree
        path = self.shape.depth + 1
        columns = 1 + path if self.shape.is_chain else 2 + 3 * path
        if played.shape[1] == columns:
            return [read(row) for row in played.tolist()]
        played, packed = played.cpu().tensor_split([columns], dim=1)
        outcomes, logprobs = [read(row) for row in played.tolist()], unpack_logprobs(packed, path)
        return [o._replace(logprobs=x) for o, x in zip(outcomes, logprobs, strict=True)]
