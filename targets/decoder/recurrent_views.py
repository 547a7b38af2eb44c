"""What the rows of a forward read of a recurrent cache, and what they leave there.

A view is computed once for all layers whose caches have the same sizes. In shapes, B counts
sequences and T rows.
"""

from functools import cached_property

import torch
from torch import Tensor

from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.step import TAIL, PromptChunk, Rows, Step


class RecurrentStepView:
    """The view of the rows of a step.

    The state that a step leaves has taken in the tokens before its row 0, which are decided, and
    none of its rows. So a step may be repeated with other drafts, and the next one finds in its
    tail all tokens that its state lacks: a text continues at most `TAIL` positions after row 0.
    """

    def __init__(self, step: Step, cache: RecurrentCache) -> None:
        """`cache` is any cache of the sizes."""
        self.step, self._cache = step, cache
        self.batch, self.rows = step.positions.shape
        self.uses_operator = step.use_splitk

    @cached_property
    def first(self) -> Tensor:
        """The position of each sequence's row 0, int64 [B]; -1 for padding."""
        return self.step.positions[:, 0]

    @cached_property
    def row_slots(self) -> Tensor:
        """The slot that each row is stored at, int64 [B * T]."""
        return self._slots(self.step.tail[..., -1])

    @cached_property
    def moves(self) -> tuple[Tensor, Tensor] | None:
        """Slots that are copied before rows are stored, and their targets: int64 [B, TAIL]."""
        sources = self.step.moves
        if sources is None:
            return None
        back = torch.arange(-TAIL, 0, device=sources.device)
        targets = torch.where(sources < 0, -1, self.first.unsqueeze(1) + back)
        return self._slots(sources).view_as(sources), self._slots(targets).view_as(sources)

    @cached_property
    def older_positions(self) -> Tensor:
        """The positions of the tokens before each sequence's row 0, int64 [B, TAIL]."""
        back = torch.arange(-TAIL, 0, device=self.first.device)
        return (self.first.unsqueeze(1) + back).clamp(min=-1)

    @cached_property
    def older_slots(self) -> Tensor:
        """The slots of the tokens before each sequence's row 0, int64 [B * TAIL]."""
        return self._slots(self.older_positions)

    @cached_property
    def taps(self) -> tuple[Tensor, Tensor]:
        """The slots of the tokens that the convolution adds up for each row, int64
        [B * T * taps], and which of them exist, bool [B * T, taps, 1]."""
        tail = self.step.tail[..., -self._cache.sizes.taps :]
        return self._slots(tail), (tail >= 0).flatten(0, 1).unsqueeze(-1)

    @cached_property
    def is_chain(self) -> Tensor:
        """Whether the rows of each text are a chain, each stored at its position: bool []."""
        step = self.step
        back = torch.arange(1 - TAIL, 1, device=step.tail.device)
        stored = step.tail == (step.positions.unsqueeze(-1) + back).clamp(min=-1)
        rows = torch.arange(self.rows, device=step.tail.device)
        follows = step.positions == self.first.unsqueeze(1) + rows
        return ((stored.all(dim=-1) & follows) | (step.positions < 0)).all()

    @cached_property
    def paths(self) -> tuple[Tensor, Tensor, Tensor]:
        """For each row the index of its text, int64 [B * T, 1], the slots of its tail, int64
        [B * T * TAIL], and which of these are rows of this step, bool [B * T, TAIL]."""
        step = self.step
        texts = torch.arange(self.batch, device=step.tail.device).view(-1, 1, 1)
        back = torch.arange(1 - TAIL, 1, device=step.tail.device)
        positions = step.positions.unsqueeze(-1) + back
        takes = (positions >= self.first.view(-1, 1, 1)) & (step.positions >= 0).unsqueeze(-1)
        return (
            texts.expand(-1, self.rows, -1).flatten(0, 1),
            self._slots(step.tail),
            takes.flatten(0, 1),
        )

    def _slots(self, slots: Tensor) -> Tensor:
        return self._cache.buffer_slots(slots, self.step.sequences).flatten()

    def convolution_inputs(self, cache: RecurrentCache, inputs: Tensor) -> list[Tensor]:
        """Apply the moves, store `inputs` [B * T, channels], and return what the convolution adds
        up: a tensor of that shape for each tap, the oldest first."""
        self.store(cache.inputs, inputs)
        slots, exist = self.taps
        count = cache.sizes.taps
        gathered = cache.inputs.index_select(0, slots).unflatten(0, (-1, count))
        gathered = torch.where(exist, gathered, 0.0)
        return [gathered[:, tap] for tap in range(count)]

    def older_terms(self, cache: RecurrentCache, terms: Tensor) -> Tensor:
        """Apply the moves, store `terms` [B * T, W], and return those of the tokens before each
        sequence's row 0, [B, TAIL, W]."""
        self.store(cache.terms, terms)
        return cache.terms.index_select(0, self.older_slots).view(self.batch, TAIL, -1)

    def takes(self, cache: RecurrentCache) -> Tensor:
        """Return which tokens before row 0 the state lacks, bool [B, TAIL]."""
        position = cache.position.index_select(0, self.step.sequences).unsqueeze(1)
        positions = self.older_positions
        return (positions >= 0) & (positions >= position)

    def state(self, cache: RecurrentCache) -> Tensor:
        """Return the states, zeros at the beginning of a text: [B, heads, key_dim, value_dim]."""
        state = cache.state.index_select(0, self.step.sequences)
        return torch.where((self.first == 0).view(-1, 1, 1, 1), 0.0, state)

    def keep(self, cache: RecurrentCache, state: Tensor) -> None:
        """Keep `state` [B, heads, key_dim, value_dim], which lacks the rows."""
        cache.state.index_copy_(0, self.step.sequences, state)
        self.keep_position(cache)

    def keep_position(self, cache: RecurrentCache) -> None:
        """Note which tokens the states that are kept have taken in."""
        sequences = self.step.sequences
        position = cache.position.index_select(0, sequences)
        position = torch.where(self.first < 0, position, self.first)
        cache.position.index_copy_(0, sequences, position)

    def store(self, buffer: Tensor, new: Tensor) -> None:
        """Apply the moves to a buffer, and store what is `new` of the rows, [B * T, ...]."""
        if self.moves is not None:
            sources, targets = self.moves
            moved = buffer.index_select(0, sources.flatten())
            buffer.index_copy_(0, targets.flatten(), moved)
        buffer.index_copy_(0, self.row_slots, new)


class RecurrentPromptView:
    """The view of the rows of a prompt chunk, none of them a draft."""

    def __init__(self, chunk: PromptChunk, cache: RecurrentCache) -> None:
        """`cache` is any cache of the sizes."""
        self.chunk, self._cache = chunk, cache
        self.rows = chunk.input_pos.shape[0]
        self.uses_operator = chunk.use_prompt_kernel

    @cached_property
    def first(self) -> Tensor:
        """The position of the first row, int64 [1]."""
        return self.chunk.input_pos[:1]

    @cached_property
    def last_slots(self) -> Tensor:
        """The slots of the last rows, as many as a tail, int64 [TAIL]."""
        return self._slots(self.chunk.input_pos[-TAIL:])

    def _slots(self, slots: Tensor) -> Tensor:
        return self._cache.buffer_slots(slots.unsqueeze(0), self.chunk.sequence).flatten()

    def convolution_inputs(self, cache: RecurrentCache, inputs: Tensor) -> list[Tensor]:
        """Store the last of `inputs` [T, channels], and return what the convolution adds up: a
        tensor of that shape for each tap, the oldest first."""
        older = cache.sizes.taps - 1
        positions = self.first + torch.arange(-older, 0, device=inputs.device)
        before = cache.inputs.index_select(0, self._slots(positions.clamp(min=-1)))
        before = torch.where((positions >= 0).unsqueeze(1), before, 0.0)
        cache.inputs.index_copy_(0, self.last_slots, inputs[-TAIL:])
        joined = torch.cat((before, inputs))
        return [joined[tap : tap - older or None] for tap in range(older + 1)]

    def store_terms(self, cache: RecurrentCache, terms: Tensor) -> None:
        """Store the last of `terms` [T, W]; a later step whose state lacks none of them reads none,
        but methods write the same buffers."""
        cache.terms.index_copy_(0, self.last_slots, terms[-TAIL:])

    def state(self, cache: RecurrentCache) -> Tensor:
        """Return the state, zeros at the beginning of a text: [1, heads, key_dim, value_dim]."""
        state = cache.state.index_select(0, self.chunk.sequence)
        return torch.where((self.first == 0).view(-1, 1, 1, 1), 0.0, state)

    def keep(self, cache: RecurrentCache, state: Tensor) -> None:
        """Keep `state` [1, heads, key_dim, value_dim], which has taken in all rows."""
        cache.state.index_copy_(0, self.chunk.sequence, state)
        self.keep_position(cache)

    def keep_position(self, cache: RecurrentCache) -> None:
        """Note which tokens the state that is kept has taken in."""
        cache.position.index_copy_(0, self.chunk.sequence, self.chunk.input_pos[-1:] + 1)


RecurrentView = RecurrentStepView | RecurrentPromptView


def recurrent_view_of(rows: Rows, cache: RecurrentCache) -> RecurrentView:
    """Return the view that `rows` have of all caches of the sizes of `cache`."""
    if isinstance(rows, PromptChunk):
        return RecurrentPromptView(rows, cache)
    return RecurrentStepView(rows, cache)
