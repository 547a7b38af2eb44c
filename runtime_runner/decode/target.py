"""The target, run by `prefill` and `target_verify`, which share its caches.

A prompt chunk has tokens int64 [1, T] of one sequence, a step tokens int64 [B, T] of B sequences.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eagle_aot.artifact import (
    COPY_ROWS,
    COPY_STATES,
    PREFILL,
    TARGET_VERIFY,
    Constants,
    ImageInputs,
)
from eagle_aot.artifact.methods import KEPT_STATES, STATE_BLOCK
from eagle_aot.runtime_runner.decode.input_embeds import ImageEmbedder, InputEmbeds
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_around, plan_chunks
from eagle_aot.runtime_runner.decode.step import StepRows, chain_rows
from eagle_aot.runtime_runner.images.prompt_image import ImageSpan, PlacedImage
from eagle_aot.runtime_runner.program.executor import Executor

CPU_CHUNK = 128
"""The longest prompt chunk on a CPU. Longer ones are no faster, and a growing conversation runs the
chunk that it filled last again."""


class Forward(NamedTuple):
    """`logits` float32 [B, T, V], and `features` [B, T, H], which the drafter reads.

    H is 0 for an artifact whose drafter reads nothing of the target.
    """

    logits: Tensor
    features: Tensor


class Target(Protocol):
    """Runs rows through its caches, at most `max_rows` of a known text in a step.

    `can_copy_rows` says whether rows can be copied between sequences, `has_states` whether layers
    have recurrent states. `suppressed_ids` int64 [N] are ids that it never chooses, None if there
    are none.
    """

    tail_length: int
    max_rows: int
    can_copy_rows: bool
    has_states: bool
    suppressed_ids: Tensor | None

    @property
    def window(self) -> int:
        """The number of last positions that every row can see, 0 if all of them are kept."""

    @property
    def rewind(self) -> int:
        """How many positions before the last written one a text may continue.

        A ring keeps a window of keys plus as many rows as one forward has: those of a chunk, or
        those that a flat cache has slots for after its text.
        """

    def plan_prompt(
        self, length: int, reused: int = 0, images: Sequence[ImageSpan] = ()
    ) -> list[Chunk]:
        """Return consecutive chunks that cover a prompt except for its first `reused` rows."""

    def input_embeds(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        """Return the rows of a chunk in which images may lie."""

    def run_prompt(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        chunk: Chunk,
        embeds: InputEmbeds | None = None,
    ) -> Forward:
        """Run a chunk: `tokens` int64 [1, T] at `input_pos` int64 [T] of `sequence` int64 [1].

        `embeds` replaces the tokens of images. The logits are the last row's, or all rows'.
        """

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        """Run a step. Before it the tokens of the D slots `moves` int64 [B, D] are copied to the
        slots of the positions before the step; -1 copies nothing. With `largest_only`, logits that
        are not the largest of their row may be others, but smaller."""

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        """Copy the first `count` rows of `source` to `sequence`, both int64 [1], in the caches of
        target and drafter."""

    def keep_state(self, sequence: int, place: int) -> None:
        """Keep the recurrent states of a sequence, whose prompt was run last, in one of its
        `KEPT_STATES` places."""

    def restore_state(self, source: int, place: int, sequence: int) -> None:
        """Continue a sequence from what is kept in a place of a `source`, which may be itself."""


class TargetMethods:
    """The `Target` of an opened artifact.

    With `can_copy_rows` it has `copy_rows`, and it takes images in prompts if `images` is not None.
    With `has_states` layers have recurrent states: a step names what they lack of a text by its
    tail, so a text's rows run as many at a time. With `screens_table` a step takes `largest_only`.
    """

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        *,
        can_copy_rows: bool = False,
        has_states: bool = False,
        screens_table: bool = False,
        images: ImageInputs | None = None,
    ) -> None:
        self._executor = executor
        self._constants = constants
        self.tail_length = constants.tail
        self.max_rows = constants.tail if has_states else constants.max_rows
        self.can_copy_rows, self.has_states = can_copy_rows, has_states
        self.screens_table = screens_table
        values = (0, 1) if screens_table else ()
        self._flags = [torch.tensor([value], device=executor.device) for value in values]
        self._embedder = None if images is None else ImageEmbedder(executor, images)
        self.suppressed_ids: Tensor | None = None
        if images is not None:
            self.suppressed_ids = torch.tensor(
                images.never, dtype=torch.int64, device=executor.device
            )

    @property
    def window(self) -> int:
        return self._constants.sliding_window

    @property
    def rewind(self) -> int:
        constants = self._constants
        if not constants.sliding_window:
            return constants.flat_slots
        rows = min(constants.sliding_window, constants.max_prefill_chunk)
        return max(rows, constants.flat_slots - constants.max_seq_len)

    def plan_prompt(
        self, length: int, reused: int = 0, images: Sequence[ImageSpan] = ()
    ) -> list[Chunk]:
        constants = self._constants
        longest = limit = constants.max_prefill_chunk
        if self._executor.device.type == "cpu":
            longest = min(longest, CPU_CHUNK)
        least, max_rows = constants.min_prefill_chunk, self.max_rows
        if images:
            return plan_around(length, images, (longest, limit), least, max_rows, reused)
        block = STATE_BLOCK if self.has_states else 0
        return plan_chunks(length, longest, least, max_rows, reused, block)

    def input_embeds(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        assert self._embedder is not None, "the artifact takes no images"
        return self._embedder.embed(chunk, images)

    def run_prompt(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        chunk: Chunk,
        embeds: InputEmbeds | None = None,
    ) -> Forward:
        if chunk.few_rows:
            step = chain_rows(tokens, input_pos[:1], sequence, self.tail_length)
            return self.verify(step, no_moves(1, self.tail_length, tokens.device))
        if self._embedder is None:
            return self._run(PREFILL, tokens, input_pos, sequence)
        if embeds is None:
            embeds = self.input_embeds(chunk, ())
        tokens, input_pos = padded(tokens, input_pos, chunk.padding)
        logits, features = self._run(PREFILL, tokens, input_pos, sequence, *embeds)
        return Forward(logits, features[:, : len(chunk)])

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        more = self.inputs_after(moves, largest_only=largest_only)
        return self._run(TARGET_VERIFY, *step.inputs, *more)

    def inputs_after(self, moves: Tensor, *, largest_only: bool) -> tuple[Tensor, ...]:
        """Return what `target_verify` takes after a step: `moves` int64 [B, D], and any flag."""
        return (moves, self._flags[largest_only]) if self.screens_table else (moves,)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        for positions in torch.arange(count).split(self._constants.max_prefill_chunk):
            self._executor.run(COPY_ROWS, positions.to(source.device), source, sequence)

    def keep_state(self, sequence: int, place: int) -> None:
        self._copy_state(sequence, self._kept(sequence, place))

    def restore_state(self, source: int, place: int, sequence: int) -> None:
        self._copy_state(self._kept(source, place), sequence)

    def _kept(self, sequence: int, place: int) -> int:
        """Return the number of a sequence's place: those of all sequences' own states are first."""
        return self._constants.max_batch_size + sequence * KEPT_STATES + place

    def _copy_state(self, source: int, target: int) -> None:
        numbers = (torch.tensor([n], device=self._executor.device) for n in (source, target))
        self._executor.run(COPY_STATES, *numbers)

    def _run(self, method: str, tokens: Tensor, *inputs: Tensor) -> Forward:
        logits, *features = self._executor.run(method, tokens, *inputs)
        return Forward(logits, *features or [logits.new_empty(*tokens.shape, 0)])


def padded(tokens: Tensor, input_pos: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Append `count` padding rows to `tokens` int64 [1, T] at `input_pos` int64 [T]."""
    if not count:
        return tokens, input_pos
    after = input_pos[-1] + torch.arange(1, count + 1, device=input_pos.device)
    return torch.cat((tokens, tokens.new_zeros(1, count)), dim=1), torch.cat((input_pos, after))


def no_moves(batch: int, tail_length: int, device: torch.device | str) -> Tensor:
    """Return moves that copy nothing, int64 [B, D]."""
    return torch.full((batch, tail_length), -1, dtype=torch.int64, device=device)
