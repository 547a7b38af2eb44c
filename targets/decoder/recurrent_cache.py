"""The cache of a layer with a recurrent state, for several sequences, written in place.

A state has taken in a text up to one position and cannot go back, so that of a draft must not be
kept. What is kept is the state before row 0 of the last step, which is decided, and of the tokens
since, by slot as keys are kept, what the state takes in. A step begins by taking in those of them
that were accepted. Its rows read copies that take in their own paths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_aot.artifact.methods import KEPT_STATES
from eagle_aot.targets.step import PADDING_SLOTS, TAIL, ring_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSizes:
    """The sizes of a gated delta net, in counts of elements.

    Each of `heads` states is a matrix [key_dim, value_dim]; consecutive heads share one of
    `key_heads` keys and queries. The convolution over queries, keys and values adds up `taps`
    tokens.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def keys(self) -> int:
        """Elements of a token's keys, and of its queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Elements of a token's values."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Elements that the convolution takes of a token: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def terms(self) -> int:
        """Elements that the states take in of a token: keys, values, decays and rates."""
        return self.keys + self.values + 2 * self.heads


class RecurrentCache(nn.Module):
    """States, and what they and the convolution take of the tokens of a tail, by slot.

    - `state` float32 [places, heads, key_dim, value_dim]: the states of each sequence, then those
      that are kept of earlier positions, `KEPT_STATES` for each sequence.
    - `position` int64 [places]: the number of tokens that they have taken in.
    - `inputs` float32 [sequences * slots + kept, channels]: what the convolution takes, and of the
      `taps - 1` tokens before each state that is kept.
    - `terms` float32 [sequences * slots, terms]: what the states take in.

    Slots are numbered like positions and taken modulo `ring`; the last `PADDING_SLOTS` of each
    sequence are for padding rows.
    """

    state: Tensor
    position: Tensor
    inputs: Tensor
    terms: Tensor
    buffer_names = ("state", "position", "inputs", "terms")

    def __init__(self, sizes: StateSizes, sequences: int) -> None:
        super().__init__()
        self.sizes, self.sequences = sizes, sequences
        self.ring = ring_slots(TAIL + sizes.taps - 1)
        self.slots = self.ring + PADDING_SLOTS
        places, rows = sequences * (1 + KEPT_STATES), sequences * self.slots
        kept = sequences * KEPT_STATES * (sizes.taps - 1)
        buffers = {
            "state": torch.zeros(places, sizes.heads, sizes.key_dim, sizes.value_dim),
            "position": torch.zeros(places, dtype=torch.int64),
            "inputs": torch.zeros(rows + kept, sizes.channels),
            "terms": torch.zeros(rows, sizes.terms),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def buffer_slots(self, slots: Tensor, sequences: Tensor) -> Tensor:
        """Map slots int64 [B, ...] of `sequences` int64 [B] to the buffers'; -1 is padding."""
        physical = torch.where(slots < 0, self.slots - 1, torch.remainder(slots, self.ring))
        first = sequences * self.slots
        return physical + first.view(-1, *[1] * (slots.ndim - 1))

    def copy_state(self, source: Tensor, target: Tensor) -> Tensor:
        """Copy a state from one place to another, both int64 [1]. Returns its position, int64 [1].

        The state of a sequence must have taken in all of its tokens, `taps` or more: no step may
        have run since its prompt.
        """
        position = self.position.index_select(0, source)
        inputs = self.inputs.index_select(0, self._last_inputs(source, position))
        self.inputs.index_copy_(0, self._last_inputs(target, position), inputs)
        self.state.index_copy_(0, target, self.state.index_select(0, source))
        self.position.index_copy_(0, target, position)
        return position

    def _last_inputs(self, place: Tensor, position: Tensor) -> Tensor:
        """Return the rows of `inputs` of the tokens before `position` int64 [1] that belong to
        `place` int64 [1]: int64 [taps - 1]."""
        count = self.sizes.taps - 1
        numbers = torch.arange(count, device=place.device)
        in_text = self.buffer_slots((position - count + numbers).unsqueeze(0), place).flatten()
        first = self.sequences * self.slots + (place - self.sequences) * count
        return torch.where(place < self.sequences, in_text, first + numbers)

    def reset(self) -> None:
        """Zero the cache; a text that begins at position 0 needs no reset."""
        for buffer in self.buffers():
            buffer.zero_()


def has_states(model: nn.Module) -> bool:
    """Whether layers of the model have recurrent states."""
    return any(isinstance(module, RecurrentCache) for module in model.modules())
