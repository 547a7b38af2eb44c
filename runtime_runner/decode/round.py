"""One round of speculative decoding: draft, verify, accept, reseed the drafter.

A round runs where the tensors are. Its shapes follow from the number of sequences and of drafts,
and it reads nothing back to the host, so it can be recorded once and replayed at any position.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted, accept
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import (
    Draft,
    DraftLimits,
    StepRows,
    paths_of,
    rows_after,
)
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs, unpack_logprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode


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
        """Commit a prompt's chunk in which `images` stand, as `observe` does without images.

        `features` [1, T, H] are the target's.
        """


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
    """Draft, verify, accept, reseed: from one batch state to the next.

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
        """Draft `shape` for every sequence, or a chain of that length."""
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
        """Play the round with one target forward. Returns int64 [B, N], which `outcomes` reads."""
        batch, target = self.batch, self.target
        draft = self._draft()
        limits = DraftLimits(batch.depth, batch.topk) if len(batch) > 1 else None
        step = rows_after(batch.bonus, batch.position, batch.sequences, draft, target.tail, limits)
        logits, features = target.verify(step, batch.moves)
        processed = self._processed(step, logits)
        choices = batch.sampler.choose(processed, step.positions + 1, step.sequences)
        accepted = accept(step, choices)
        logprobs = self._logprobs(accepted, logits, processed)
        if self.drafter:
            self.drafter.observe(accepted, features)  # reseed
        self._count(accepted)
        batch.advance(accepted, scattered=step.lineage is not None)
        columns = [accepted.count.unsqueeze(1), accepted.tokens]
        if accepted.ranks is not None and accepted.offered_ranks is not None:
            drafted = (step.positions[:, 1:] >= 0).sum(dim=1, keepdim=True)
            columns = [columns[0], drafted, accepted.tokens, accepted.ranks, accepted.offered_ranks]
        return torch.cat((*columns, *logprobs), dim=1)

    def _draft(self) -> Draft:
        """Return the drafter's tokens after each bonus token, or none for plain decoding."""
        if not self.drafter or not self.shape.nodes:
            return Draft(self.batch.bonus[:, :0])
        draft = self.drafter.propose(self.batch, self.shape)
        assert (draft.parents is None) == self.shape.is_chain, "the draft has another shape"
        return self._replace_never_chosen(draft)

    def _replace_never_chosen(self, draft: Draft) -> Draft:
        """Replace draft tokens that the target never chooses, such as image placeholders."""
        never = self.target.never
        if never is None:
            return draft
        is_never = (draft.tokens.unsqueeze(-1) == never).any(dim=-1)
        return replace(draft, tokens=torch.where(is_never, self.batch.bonus, draft.tokens))

    def _count(self, accepted: Accepted) -> None:
        """Count the accepted path's tokens for later penalties."""
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
