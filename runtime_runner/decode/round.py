"""One round of speculative decoding, where the tensors are.

Every shape is fixed by the number of sequences and of drafts, and nothing is read back to the host,
so that a round can be recorded once and replayed at any position of the texts.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted, accept
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.outlook import WIDTH, NextTokenProbs, PredictsNextToken
from eagle_aot.runtime_runner.decode.shape import MAX_TOPK, Shape
from eagle_aot.runtime_runner.decode.step import (
    Draft,
    DraftLimits,
    StepRows,
    arange_cached,
    masked,
    paths_of,
    rows_after,
)
from eagle_aot.runtime_runner.decode.target import Target, no_moves
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.logprobs import unpacked
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class BatchState:
    """The sequences of a round, between two rounds; in the same tensors for good.

    `bonus` int64 [B, 1] is the token that is decided but in no cache yet, `position` int64 [B] its
    place, -1 for a sequence that only fills its place. `sequences` int64 [B] are the caches they
    use, each another one. `moves` int64 [B, D] are the slots of the D tokens before the bonus
    where they do not lie in those of their positions, else -1. `depth` and `topk` int64 [B] are how
    much of a draft each takes at most, which a round of one sequence does not ask. `sampler` knows
    how the tokens of each cache are chosen.
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
        """Those at the first `count` indices, in the same memory."""
        part = copy.copy(self)
        for name, tensor in self.tensors().items():
            setattr(part, name, tensor[:count])
        return part

    def swap(self, index: int, other: int) -> None:
        """Let two sequences change places."""
        for tensor in self.tensors().values():
            tensor[[index, other]] = tensor[[other, index]]

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Let all of them only fill their places for a while."""
        before = {name: tensor.clone() for name, tensor in self.tensors().items()}
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

    def take(self, shape: Shape | None, index: int) -> None:
        """Let the sequence at `index` have drafts no deeper and no wider than `shape`'s, all for
        None."""
        longest = self.moves.shape[1] - 1
        self.depth[index] = longest if shape is None else shape.depth
        self.topk[index] = MAX_TOPK if shape is None else shape.topk

    def stop(self, index: int) -> None:
        """Let the sequence at `index` only fill its place from now on."""
        self.position[index : index + 1].fill_(-1)
        self.moves[index : index + 1].fill_(-1)

    def tensors(self) -> dict[str, Tensor]:
        """Its state, by name."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def advance(self, accepted: Accepted, *, scattered: bool) -> None:
        """Go on behind what was accepted; `scattered` tells a tree's path from a chain's."""
        live = accepted.first >= 0
        self.bonus.copy_(accepted.last_token)
        self.position.copy_(masked(live, accepted.first + accepted.count + 1))
        if scattered:
            self.moves.copy_(path_slots(accepted, self.moves.shape[1]))
        else:
            self.moves.fill_(-1)


def path_slots(accepted: Accepted, tail: int) -> Tensor:
    """Slots of the last D tokens of the text, int64 [B, D]; -1 for those in front of the path."""
    entry = accepted.count.unsqueeze(1) + arange_cached(1 - tail, 1, accepted.count.device)
    inside = (entry >= 0) & (accepted.first >= 0).unsqueeze(1)
    return masked(inside, accepted.slots.gather(1, entry.clamp(min=0)))


class Drafter(Protocol):
    """Guesses how texts go on."""

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """Drafts behind each sequence's bonus token, at least one."""

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """What became of a step, or of a prompt's chunk: features [B, T, H] are by row."""


@runtime_checkable
class StatelessDrafter(Protocol):
    """A drafter that need not have been shown the rows that a text goes on from: it has no caches
    of its own in the program."""

    def recall(self, tokens: Tensor, sequence: Tensor) -> None:
        """The text of a sequence int64 [1] goes on from rows of `tokens` int64 [1, T], all but the
        last."""


@runtime_checkable
class ReadsImages(Protocol):
    """A drafter that reads the rows of images in prompts."""

    def observe_images(self, accepted: Accepted, features: Tensor, images: InputEmbeds) -> None:
        """Commit a prompt's chunk in which `images` stand, as `observe` does without images."""


class Outcome(NamedTuple):
    """What came of a round for one text, on the host: `accepted` drafts were right, and the first
    `accepted + 1` of `tokens` go on with the text.

    Of a tree there were `drafted` drafts, `ranks` are those of the rows of the path among the
    drafts behind the same row, the bonus first, and bit r of `offered` says whether there was a
    draft of rank r behind each of them. `outlook` is what the drafter expects next, where it is
    asked, and `logprobs` are those of each of `tokens`, where anybody is told them.
    """

    accepted: int
    tokens: Sequence[int]
    drafted: int | None = None
    ranks: Sequence[int] = ()
    offered: Sequence[int] = ()
    outlook: NextTokenProbs | None = None
    logprobs: Sequence[TokenLogprobs] = ()

    @classmethod
    def of_chain(cls, row: list[int]) -> "Outcome":
        """Of one sequence's row of what a round returns."""
        return cls(row[0], row[1:])

    @classmethod
    def of_tree(cls, row: list[int]) -> "Outcome":
        """The same of a tree's."""
        accepted, drafted, *path = row
        third = len(path) // 3
        return cls(accepted, path[:third], drafted, path[third : 2 * third], path[2 * third :])


class Round:
    """Draft, verify, accept, reseed: the step from one state to the next.

    Rounds with the same running sequences and drafter continue one another's texts, whatever their
    shapes. A chain of 0 is plain decoding. `play` is `step`, or a recording of it.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        shape: Shape | int,
        running: BatchState,
        foreseeing: PredictsNextToken | None = None,
    ) -> None:
        """`shape` is what each sequence is drafted; a number is a chain's length. The drafter is
        `foreseeing` where it should tell what it expects next."""
        self.target = target
        self.drafter = drafter
        shape = Shape.chain(shape) if isinstance(shape, int) else shape
        self.shape = shape if drafter else Shape.chain(0)
        self.chain_len = self.shape.depth
        self.running = running
        self._foreseeing = foreseeing
        self.play: Call = self.step

    @property
    def device(self) -> torch.device:
        """Where the running sequences are."""
        return self.running.bonus.device

    def step(self) -> Tensor:
        """One verify forward. Returns int64 [B, N], of which `outcomes` says what it means."""
        running = self.running
        draft = Draft(running.bonus[:, :0])
        if self.drafter and self.shape.nodes:
            draft = self.drafter.propose(running, self.shape)
            assert (draft.parents is None) == self.shape.is_chain, "another kind of draft"
            draft = self._possible(draft)
        where = running.position, running.sequences
        wanted = DraftLimits(running.depth, running.topk) if len(running) > 1 else None
        step = rows_after(running.bonus, *where, draft, self.target.tail, wanted)
        logits, features = self.target.verify(step, running.moves)
        processed = self._processed(step, logits)
        accepted = accept(step, self._choose(step, processed))
        told = self._told(accepted, logits, processed)
        if self.drafter:
            self.drafter.observe(accepted, features)
        self._count(accepted)
        running.advance(accepted, scattered=step.lineage is not None)
        found = [accepted.count.unsqueeze(1), accepted.tokens]
        if accepted.ranks is not None and accepted.offered is not None:
            drafted = (step.positions[:, 1:] >= 0).sum(dim=1, keepdim=True)
            found = [found[0], drafted, accepted.tokens, accepted.ranks, accepted.offered]
        if self._foreseeing:
            found.append(self._foreseeing.outlook(running.sequences))
        return torch.cat((*found, *told), dim=1)

    def _possible(self, draft: Draft) -> Draft:
        """With the bonus token in place of what stands for no token of a text."""
        never = self.target.never
        if never is None:
            return draft
        stands = (draft.tokens.unsqueeze(-1) == never).any(dim=-1)
        return replace(draft, tokens=torch.where(stands, self.running.bonus, draft.tokens))

    def _count(self, accepted: Accepted) -> None:
        if self.running.sampler.kind < SamplingMode.PROCESSED:
            return
        step = arange_cached(0, accepted.tokens.shape[1], accepted.tokens.device)
        decided = (step <= accepted.count.unsqueeze(1)) & (accepted.first >= 0).unsqueeze(1)
        self.running.sampler.count(accepted.tokens, accepted.sequences, decided)

    def _processed(self, step: StepRows, logits: Tensor) -> Tensor:
        """Logits [B, T, V] of what may be chosen behind each row."""
        sampler = self.running.sampler
        paths = paths_of(step) if sampler.kind == SamplingMode.PROCESSED else None
        return sampler.processed(logits, step.positions + 1, step.sequences, paths)

    def _choose(self, step: StepRows, processed: Tensor) -> Tensor:
        """The target's own choice behind each row, int64 [B, T]."""
        return self.running.sampler.choose(processed, step.positions + 1, step.sequences)

    def _told(self, accepted: Accepted, logits: Tensor, processed: Tensor) -> list[Tensor]:
        """Log probabilities of the path's tokens, where anybody is told them."""
        sampler = self.running.sampler
        if not sampler.tells:
            return []
        of_path = accepted.of_path(logits), accepted.of_path(processed)
        return [sampler.logprobs(*of_path, accepted.tokens, accepted.sequences)]

    def outcomes(self, played: Tensor) -> list[Outcome]:
        """Of each sequence, from what `play` returned: the round's one copy to the host."""
        read = Outcome.of_chain if self.shape.is_chain else Outcome.of_tree
        path = self.shape.depth + 1
        columns = 1 + path if self.shape.is_chain else 2 + 3 * path
        ahead = 2 * WIDTH if self._foreseeing else 0
        told = None
        if played.shape[1] > columns + ahead:
            played, told = played.cpu().tensor_split([columns + ahead], dim=1)
        rows = played.tolist()
        outcomes = [read(row[:columns]) for row in rows]
        if ahead:
            outlooks = [NextTokenProbs.read(row[columns:]) for row in rows]
            outcomes = [o._replace(outlook=x) for o, x in zip(outcomes, outlooks, strict=True)]
        if told is not None:
            logprobs = unpacked(told, path)
            outcomes = [o._replace(logprobs=x) for o, x in zip(outcomes, logprobs, strict=True)]
        return outcomes
