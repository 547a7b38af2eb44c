"""The step: the rows that one forward runs, and the one home of every size limit.

A row is one token of one sequence. It sees the committed slots of its sequence, in which slot and
position are the same, up to `TAIL` positions before its own, and the slots of its *tail*: the last
`TAIL` tokens of its own path, wherever they lie. So the branches of a tree are stored where there
is room, a chain is a tree with one branch, and a row's arithmetic depends on its position and on
its path alone: the same sums in the same order, whatever the slots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ROWS = 64
"""Rows of one forward over all sequences; a longer input is a prompt."""

TAIL = 16
"""Tokens of its own path that a row reads by slot, itself among them."""

MAX_TREE_DEPTH = TAIL - 1
"""Drafts on one path: all of them, and the token that they follow, must fit a tail."""

MAX_CHAIN_LEN = MAX_TREE_DEPTH

MIN_PREFILL = MAX_ROWS + 1

SCRATCH_SLOTS = 88
"""Slots behind a text for tokens that are not committed: `TAIL` on the path, `MAX_ROWS` nodes."""

PADDING_SLOTS = 8
"""The last slots of every cache: padding rows are written there, and nothing reads them."""


def flat_slots(max_seq_len: int) -> int:
    """Slots of a cache that holds every position of a sequence."""
    return max_seq_len + SCRATCH_SLOTS + PADDING_SLOTS


def ring_slots(window: int, chunk: int = 0) -> int:
    """Slots that a sliding layer uses in turn, `PADDING_SLOTS` not counted.

    A window, and room for the rows of one forward: a chunk of a prompt, of which it takes `chunk`
    rows and more, or the nodes of a tree.
    """
    return window + longest_chunk(window, chunk)


def longest_chunk(window: int, chunk: int = 0) -> int:
    """Rows of a prompt that such a ring takes without losing a key that one of them needs."""
    return max(window, SCRATCH_SLOTS + PADDING_SLOTS, chunk)


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of B sequences, T of each.

    `positions` int64 [B, T]: where a row stands in its text; -1 is padding, which stores nothing
    and whose results nothing reads. `sequences` int64 [B]: whose caches they use, each at most
    once. `tail` int64 [B, T, TAIL]: slots of the last tokens of the row's path in the order of
    their positions, its own last; -1 before the text's beginning. `moves` int64 [B, TAIL]: where
    the TAIL tokens before the first row lie; before anything is stored they are copied to the slots
    of their positions. -1: nothing to copy; a slot among those copied to may only be its own
    source. None where no cache holds a tree. With `splits_keys` layers attend through the operator
    that is made for few rows.
    """

    positions: Tensor
    sequences: Tensor
    tail: Tensor
    moves: Tensor | None = None
    splits_keys: bool = False

    @property
    def row_positions(self) -> Tensor:
        """Of all rows one after another, int64 [1, B * T]: as layers take them."""
        return one_row_of_rows(self.positions)


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of a chunk that are given as `embeddings` [1, T, H], in place of the scaled table's.

    `last_visible` int64 [T] is the position up to which a given row sees in sliding layers, within
    the chunk: a picture's last row, or its own. -1 for a token's row, which is not given.
    """

    embeddings: Tensor
    last_visible: Tensor

    def merged(self, stream: Tensor) -> Tensor:
        """Into what was embedded of tokens [1, T, H]."""
        is_given = (self.last_visible >= 0).view(1, -1, 1)
        return torch.where(is_given, self.embeddings, stream)


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Consecutive positions of one sequence: `input_pos` int64 [T], `sequence` int64 [1].

    Slot and position are the same, and a row sees all before it. With `streams_keys` layers attend
    through the operator that is made for prompts. `given`, where any row is not a token's, says
    which are not.
    """

    input_pos: Tensor
    sequence: Tensor
    streams_keys: bool = False
    given: "GivenRows | None" = None

    @property
    def row_positions(self) -> Tensor:
        """As a step has them, int64 [1, T]."""
        return self.input_pos.unsqueeze(0)

    @property
    def last_visible(self) -> Tensor | None:
        """Of `given` rows."""
        return None if self.given is None else self.given.last_visible


Rows = Step | PromptChunk


def one_row_of_rows(x: Tensor) -> Tensor:
    """[B, T, ...] -> [1, B * T, ...]: XNNPACK takes one dynamic dimension, and layers need no more.

    Nothing is done, and nothing traced, where B is 1.
    """
    return x if isinstance(x.shape[0], int) and x.shape[0] == 1 else x.flatten(0, 1).unsqueeze(0)


def rows_of_sequences(x: Tensor, like: Tensor) -> Tensor:
    """[1, B * T, ...] -> [B, T, ...], B and T those of `like`."""
    batch, rows = like.shape[:2]
    return x if isinstance(batch, int) and batch == 1 else x.view(batch, rows, *x.shape[2:])


def chain_tail(positions: Tensor) -> Tensor:
    """Tails of rows that lie in the slots of their positions: int64 [..., T] -> [..., T, TAIL]."""
    back = torch.arange(1 - TAIL, 1, device=positions.device)
    return (positions.unsqueeze(-1) + back).clamp(min=-1)


def chain_step(input_pos: Tensor, splits_keys: bool = False) -> Step:
    """Consecutive rows of the first sequence, int64 [T], as a step."""
    positions = input_pos.unsqueeze(0)
    first = torch.zeros(1, dtype=torch.int64, device=input_pos.device)
    return Step(positions, first, chain_tail(positions), splits_keys=splits_keys)
