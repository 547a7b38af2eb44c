"""One round of speculative decoding: draft, verify, accept, reseed the drafter.

The loop around it is `Engine._run_round` in engine/engine.py, which chooses a round, calls its
`run`, and reads an `Outcome` for each request.

A round runs where the tensors are. Its shapes follow from the number of sequences and of drafts,
and it reads nothing back to the host, so it can be recorded once and replayed at any position.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted, accept
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.shared_rows import Lines, SharedRows, share_rows
from eagle_aot.runtime_runner.decode.step import (
    Draft,
    DraftLimits,
    StepRows,
    parents_of,
    paths_of,
    rows_after,
)
from eagle_aot.runtime_runner.decode.target import Forward, Target
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs, unpack_logprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.sampler import greedy
from eagle_aot.runtime_runner.sampling.token_masks import Followed, pack_rows


class Drafter(Protocol):
    """Proposes draft tokens."""

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return at least one draft token after each sequence's bonus token."""

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Take over the accepted path of a step, or a chunk of a prompt.

        `features` [B, T, H] are the target's, by row.
        """


UNITS = 1 << 20
"""How many units a probability of 1 has in what a round returns, which is int64."""


@runtime_checkable
class StatelessDrafter(Protocol):
    """A drafter without caches of its own: it need not have seen the rows of a reused prefix."""

    def restore_prefix(self, tokens: Tensor, sequence: Tensor) -> None:
        """Continue sequence int64 [1], whose cache holds `tokens` int64 [1, T] but the last."""


@runtime_checkable
class ConfidentDrafter(Protocol):
    """A drafter whose chains have a `Draft.survival`, of at most `confident_drafts` drafts; 0 if
    its head has no confidence. A text that runs alone verifies those that are accepted with a
    probability of at least `least_survival`. Texts share rows in at most `max_lines` lines."""

    confident_drafts: int
    least_survival: float
    max_lines: int


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
    requested. In shared rows, and where a round is cut, `drafted` is the number of drafts that were
    verified; in shared rows `survival` are the probabilities of all drafts to be accepted.
    """

    accepted: int
    tokens: Sequence[int]
    drafted: int | None = None
    ranks: Sequence[int] = ()
    offered_ranks: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    survival: Sequence[float] = ()


class Drafted(NamedTuple):
    """The rows of a round, and what the host reads of them, int64 [B, N] as by `pack_rows`, if any
    request has a constraint. Rows that texts share have the `survival` float32 [B, N] of drafts."""

    rows: StepRows
    packed: Tensor | None = None
    shared: SharedRows | None = None
    survival: Tensor | None = None


class Round:
    """Draft, verify, accept, reseed: from one batch state to the next.

    Rounds of any shapes may follow each other over the same batch state and drafter. A chain of 0
    is plain decoding. `run` is `step`, or a recording of it: callers call `run`.

    While a request has a constraint, `look_ahead`, `follow` and `fill_masks` run on the host before
    the parts `draft`, `verify` and `decide`, which may then be recorded one by one.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        shape: Shape | int,
        batch: BatchState,
        lines: Lines | None = None,
        *,
        cuts: bool = False,
    ) -> None:
        """Draft `shape` for every sequence, or a chain of that length. With `lines`, sequences
        share as many rows as their chains have. With `cuts`, which need a single sequence and a
        drafter with confidence, the drafts of a chain that are unlikely to be accepted are not
        verified; such a round cannot be recorded."""
        self.target = target
        self.drafter = drafter
        shape = Shape.chain(shape) if isinstance(shape, int) else shape
        self.shape = shape if drafter else Shape.chain(0)
        self.chain_len = self.shape.depth
        self._lines = lines if drafter else None
        self._cuts = cuts
        self.batch = batch
        self.run: Call = self.step

    @property
    def lines(self) -> Lines | None:
        """The lines that sequences share now: none while a request has a constraint, whose masks
        are those of its own rows."""
        return None if self.batch.sampler.is_constrained else self._lines

    @property
    def cuts(self) -> bool:
        """Whether the round verifies likely drafts alone: not those of a request with a constraint,
        which replaces drafts, or with log probabilities, whose number is fixed."""
        sampler = self.batch.sampler
        return self._cuts and not (sampler.is_constrained or sampler.wants_logprobs)

    def step(self) -> Tensor:
        """Run the round with one target forward. Returns int64 [B, N]; see `_widths`."""
        self.look_ahead()
        drafted = self.draft()
        followed = self.follow(drafted)
        forward = self.verify(drafted)
        self.fill_masks(followed)
        return self.decide(drafted, forward)

    def look_ahead(self) -> None:
        """Write what may follow the answers of requests with constraints, for the drafter."""
        if self.shape.nodes and self.batch.sampler.is_constrained:
            self.batch.sampler.masks.look_ahead()

    def draft(self) -> Drafted:
        """Return the rows of the round."""
        batch = self.batch
        draft = self._draft()
        limits = DraftLimits(batch.depth, batch.topk)
        start = batch.bonus, batch.position, batch.sequences, draft
        if self.lines is not None:
            shared = share_rows(self.lines, *start, batch.moves, limits)
            return Drafted(shared.by_text, shared=shared, survival=draft.survival)
        rows = rows_after(*start, self.target.tail_length, limits if len(batch) > 1 else None)
        if not batch.sampler.is_constrained:
            return Drafted(rows)
        parents = parents_of(rows)
        return Drafted(rows, pack_rows(rows.sequences, rows.tokens, rows.positions, parents))

    def follow(self, drafted: Drafted) -> Sequence[Followed]:
        """Follow the drafts of requests with constraints on the host, which replaces those that it
        can. Waits for the device if there are such requests."""
        if drafted.packed is None:
            return ()
        return self.batch.sampler.masks.follow(drafted.packed, drafted.rows.tokens)

    def verify(self, drafted: Drafted) -> Forward:
        """Run the target's forward."""
        largest_only = self.batch.sampler.reads_largest_only
        if (shared := drafted.shared) is not None:
            forward = self.target.verify(shared.by_line, shared.moves, largest_only=largest_only)
            return shared.unpacked(forward)
        return self.target.verify(drafted.rows, self.batch.moves, largest_only=largest_only)

    def fill_masks(self, followed: Sequence[Followed]) -> None:
        """Write which tokens may follow the rows, while the target runs."""
        if followed:
            self.batch.sampler.masks.fill(followed)

    def decide(self, drafted: Drafted, forward: Forward) -> Tensor:
        """Accept, reseed the drafter and advance the batch state. Returns what `step` does."""
        batch, rows, (logits, features) = self.batch, drafted.rows, forward
        processed, choices = self._chosen(rows, logits)
        accepted = accept(rows, choices)
        logprobs = self._logprobs(accepted, logits, processed)
        if self.drafter:
            self.drafter.observe(accepted, features)  # reseed
        self._count(accepted)
        batch.advance(accepted, scattered=rows.lineage is not None)
        return self._pack(drafted, accepted, logprobs)

    def _draft(self) -> Draft:
        """Return the drafter's tokens after each bonus token, or none for plain decoding."""
        if not self.drafter or not self.shape.nodes:
            return Draft(self.batch.bonus[:, :0])
        shape = self.shape if self.lines is None else Shape.chain(self.lines.depth)
        draft = self.drafter.propose(self.batch, shape)
        assert (draft.parents is None) == self.shape.is_chain, "the draft has another shape"
        draft = self._replace_suppressed(draft)
        if not self.cuts:
            return draft
        assert isinstance(self.drafter, ConfidentDrafter)
        return draft.confident(self.drafter.least_survival)

    def _replace_suppressed(self, draft: Draft) -> Draft:
        """Replace draft tokens that the target never chooses, such as image placeholders."""
        suppressed_ids = self.target.suppressed_ids
        if suppressed_ids is None:
            return draft
        suppressed = (draft.tokens.unsqueeze(-1) == suppressed_ids).any(dim=-1)
        return replace(draft, tokens=torch.where(suppressed, self.batch.bonus, draft.tokens))

    def _count(self, accepted: Accepted) -> None:
        """Count the accepted path's tokens for later penalties."""
        if self.batch.sampler.mode < SamplingMode.PROCESSED:
            return
        offsets = arange_cached(0, accepted.tokens.shape[1], accepted.tokens.device)
        decided = (offsets <= accepted.count.unsqueeze(1)) & (
            accepted.bonus_position >= 0
        ).unsqueeze(1)
        self.batch.sampler.count(accepted.tokens, accepted.sequences, decided)

    def _chosen(self, rows: StepRows, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the logits processors make of logits [B, T, V], each by its own path, and the
        tokens int64 [B, T] that are chosen from it."""
        sampler = self.batch.sampler
        if sampler.mode == SamplingMode.GREEDY:  # which reads no positions
            return logits, greedy(logits)
        following = rows.positions + 1
        paths = paths_of(rows) if sampler.mode == SamplingMode.PROCESSED else None
        processed = sampler.processed(logits, following, rows.sequences, paths)
        return processed, sampler.choose(processed, following, rows.sequences)

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

    @property
    def _widths(self) -> list[int]:
        """The columns of the round's results, with at most P rows a path: `count`, for trees,
        shared rows and cut rounds the number of drafts, `tokens` [P], for trees `ranks` [P] and
        `offered_ranks` [P], for shared rows the survival of the drafts."""
        lines, path, is_tree = self.lines, self.shape.depth + 1, not self.shape.is_chain
        if lines is not None:
            return [1, 1, lines.rows_of_a_text, 0, 0, lines.depth]
        return [1, int(is_tree or self.cuts), path, path * is_tree, path * is_tree, 0]

    def _pack(self, drafted: Drafted, accepted: Accepted, logprobs: Sequence[Tensor]) -> Tensor:
        """Return the round's results as one tensor int64 [B, N], for `outcomes`: the columns of
        `_widths`, survival in units of 1 / `UNITS`, then packed log probabilities, if any."""
        _, counts_drafts, path, *_ = self._widths
        columns, tokens = [accepted.count.unsqueeze(1)], accepted.tokens
        if counts_drafts:
            columns.append((drafted.rows.positions[:, 1:] >= 0).sum(dim=1, keepdim=True))
        columns.append(pad(tokens, (0, path - tokens.shape[1])) if self.cuts else tokens)
        if accepted.ranks is not None and accepted.offered_ranks is not None:
            columns += accepted.ranks, accepted.offered_ranks
        if drafted.survival is not None:
            columns.append((drafted.survival * UNITS).long())
        return torch.cat((*columns, *logprobs), dim=1)

    def outcomes(self, packed: Tensor) -> list[Outcome]:
        """Read the sequences' outcomes from what `run` returned, int64 [B, N], in one copy."""
        widths = self._widths
        *columns, logprobs = packed.cpu().split([*widths, packed.shape[1] - sum(widths)], dim=1)
        by_sequence = zip(*(column.tolist() for column in columns), strict=True)
        outcomes = [
            Outcome(
                count,
                tokens,
                drafted[0] if drafted else None,
                ranks,
                offered_ranks,
                survival=[units / UNITS for units in survival],
            )
            for (count,), drafted, tokens, ranks, offered_ranks, survival in by_sequence
        ]
        if not logprobs.shape[1]:
            return outcomes
        of_paths = zip(outcomes, unpack_logprobs(logprobs, widths[2]), strict=True)
        return [outcome._replace(logprobs=of_path) for outcome, of_path in of_paths]
