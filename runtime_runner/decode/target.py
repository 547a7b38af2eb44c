"""The target behind `prefill` and `target_verify`, which share its caches."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eagle_aot.artifact import COPY_ROWS, PREFILL, TARGET_VERIFY, Constants, ImageInputs
from eagle_aot.runtime_runner.decode.input_embeds import GivenRows, InputEmbeds
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_around, plan_chunks
from eagle_aot.runtime_runner.decode.step import StepRows, chain_rows
from eagle_aot.runtime_runner.images.prompt_image import ImageSpan, PlacedImage
from eagle_aot.runtime_runner.program.executor import Executor

CPU_CHUNK = 128
"""Tokens of a prompt that a CPU takes at once at most: more are no faster, and a text that grows
has the last chunk it filled run again."""


class Forward(NamedTuple):
    """`logits` float32 [B, T, V] and what the drafter reads of the target, [B, T, H].

    H is 0 for an artifact whose drafter reads nothing.
    """

    logits: Tensor
    features: Tensor


class Target(Protocol):
    """Runs rows through its caches, `max_rows` of a step at most. `copies` says whether a sequence
    can take over another's. `never` int64 [N] are ids that it never chooses, None where there are
    none."""

    tail: int
    max_rows: int
    copies: bool
    never: Tensor | None

    @property
    def window(self) -> int:
        """The last positions that every row can see, 0 where all of them are kept."""

    @property
    def rewind(self) -> int:
        """How many positions behind the last one that was written a text may go on."""

    def plan_prompt(self, length: int, kept: int = 0) -> list[Chunk]:
        """Consecutive chunks that cover a prompt, but for its first `kept` rows."""

    def run_prompt(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk
    ) -> Forward:
        """A chunk: tokens int64 [1, T] at input_pos int64 [T] of sequence int64 [1].

        Logits are the last row's alone, or all rows'.
        """

    def plan_around(self, length: int, images: Sequence[ImageSpan], kept: int = 0) -> list[Chunk]:
        """As `plan_prompt`, of a prompt with images."""

    def given_rows(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        """What the rows of a chunk are in which images may lie."""

    def run_given(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk, given: InputEmbeds
    ) -> Forward:
        """As `run_prompt`, of a chunk with such rows."""

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        """A step, before which `moves` int64 [B, D] say where the D tokens before it lie."""

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        """Copy the first `count` rows of a sequence int64 [1] to another one int64 [1], in the
        target's caches and in the drafter's."""


class TargetMethods:
    """Of an opened artifact, which has `copy_rows` where it `copies`, and takes `images` in prompts
    where that is not None."""

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        *,
        copies: bool = False,
        images: ImageInputs | None = None,
    ) -> None:
        self._executor = executor
        self._constants = constants
        self.tail, self.max_rows, self.copies = constants.tail, constants.max_rows, copies
        self._given = None if images is None else GivenRows(executor, images)
        self.never: Tensor | None = None
        if images is not None:
            self.never = torch.tensor(images.never, dtype=torch.int64, device=executor.device)

    def plan_prompt(self, length: int, kept: int = 0) -> list[Chunk]:
        constants = self._constants
        longest, least = constants.max_prefill_chunk, constants.min_prefill_chunk
        if self._executor.device.type == "cpu":
            longest = min(longest, CPU_CHUNK)
        return plan_chunks(length, longest, least, constants.max_rows, kept)

    @property
    def window(self) -> int:
        return self._constants.sliding_window

    @property
    def rewind(self) -> int:
        """How many positions behind the last one that was written a text may go on.

        A ring keeps a window of keys for as many rows as one forward has: a chunk's, or those that
        a flat cache has room for behind its text.
        """
        constants = self._constants
        if not constants.sliding_window:
            return constants.flat_slots
        scratch = constants.flat_slots - constants.max_seq_len
        return max(constants.sliding_window, scratch)

    def run_prompt(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk
    ) -> Forward:
        if chunk.few_rows:
            step = chain_rows(tokens, input_pos[:1], sequence, self.tail)
            return self.verify(step, no_moves(1, self.tail, tokens.device))
        if self._given is None:
            return self._run(PREFILL, tokens, input_pos, sequence)
        return self.run_given(tokens, input_pos, sequence, chunk, self.given_rows(chunk, ()))

    def plan_around(self, length: int, images: Sequence[ImageSpan], kept: int = 0) -> list[Chunk]:
        constants = self._constants
        longest, least = constants.max_prefill_chunk, constants.min_prefill_chunk
        room = longest
        if self._executor.device.type == "cpu":
            longest = min(longest, CPU_CHUNK)
        sizes = longest, room
        return plan_around(length, images, sizes, least, constants.max_rows, kept)

    def given_rows(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        assert self._given is not None, "an artifact of text"
        return self._given.of(chunk, images)

    def run_given(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk, given: InputEmbeds
    ) -> Forward:
        rows = padded(tokens, input_pos, chunk.padding)
        found = self._run(PREFILL, *rows, sequence, *given)
        return Forward(found.logits, found.features[:, : len(chunk)])

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        return self._run(TARGET_VERIFY, *step.inputs, moves)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        for positions in torch.arange(count).split(self._constants.max_prefill_chunk):
            self._executor.run(COPY_ROWS, positions.to(source.device), source, sequence)

    def _run(self, method: str, tokens: Tensor, *more: Tensor) -> Forward:
        logits, *features = self._executor.run(method, tokens, *more)
        return Forward(logits, *features or [logits.new_empty(*tokens.shape, 0)])


def padded(tokens: Tensor, input_pos: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """tokens int64 [1, T] at input_pos int64 [T], and `count` rows behind them."""
    if not count:
        return tokens, input_pos
    after = input_pos[-1] + torch.arange(1, count + 1, device=input_pos.device)
    return torch.cat((tokens, tokens.new_zeros(1, count)), dim=1), torch.cat((input_pos, after))


def no_moves(batch: int, tail: int, device: torch.device | str) -> Tensor:
    """Nothing to copy: int64 [B, D]."""
    return torch.full((batch, tail), -1, dtype=torch.int64, device=device)
