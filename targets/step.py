"""The rows that one forward runs, and every limit on their number.

A row is one token of one sequence. It attends to two sets of slots: the committed slots of its
sequence, where slot equals position, up to `TAIL` positions before its own; and the slots of its
*tail*, the last `TAIL` tokens on its own path, wherever they are stored. Branches of a tree can
therefore be stored in any free slots, and a chain is a tree with one branch. A row's arithmetic
depends only on its position and its path: it adds the same numbers in the same order, whatever
slots they are in.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ROWS = 64
"""Maximum rows of one sequence in a step; longer inputs are prompts."""

MAX_STEP_ROWS = 256
"""Maximum rows of a step, over all sequences."""

MAX_SEQUENCES = 128
"""Maximum sequences of a step."""

TAIL = 16
"""Tokens of its own path that a row reads by slot, including itself."""

MAX_TREE_DEPTH = TAIL - 1
"""Maximum draft tokens on one path: they and the token before them must fit in a tail."""

MAX_CHAIN_LEN = MAX_TREE_DEPTH

MIN_PREFILL = MAX_ROWS + 1

SCRATCH_SLOTS = 88
"""Slots after `max_seq_len` for uncommitted tokens: up to `TAIL` on the path, `MAX_ROWS` nodes."""

PADDING_SLOTS = 8
"""The last slots of every cache; padding rows are stored there and never read."""


def flat_slots(max_seq_len: int) -> int:
    """Return the number of slots of a cache that holds every position of a sequence."""
    return max_seq_len + SCRATCH_SLOTS + PADDING_SLOTS


def ring_slots(window: int, chunk: int = 0) -> int:
    """Return the number of slots that a sliding layer reuses, without `PADDING_SLOTS`.

    That is a window plus the rows of one forward: a prompt chunk of up to `chunk` rows, 0 for a
    window, or the nodes of a tree.
    """
    return window + longest_chunk(window, chunk)


def longest_chunk(window: int, chunk: int = 0) -> int:
    """Return the longest prompt chunk that overwrites no key which one of its rows needs."""
    return max(chunk or window, SCRATCH_SLOTS + PADDING_SLOTS)


@dataclass(frozen=True, slots=True)
class Step:
    """T rows of each of B sequences.

    - `positions` int64 [B, T]: the position of each row in its sequence. -1 is padding: it stores
      nothing that is read, and its outputs are not used.
    - `sequences` int64 [B]: the index of each sequence's cache. A sequence may have several
      entries, each with other rows of it; at most one of them has moves.
    - `tail` int64 [B, T, TAIL]: slots of the last tokens on each row's path, in order of position;
      the last one is the row's own. -1 before the start of the sequence.
    - `moves` int64 [B, TAIL]: current slots of the TAIL tokens before the first row. Before the
      rows are stored, these entries are copied to the slots of their positions. -1: nothing to
      copy. A slot that is copied to may be a source only of itself. None: nothing to copy at all.
    - `use_splitk`: attend through the split-K operator for few rows.
    """

    positions: Tensor
    sequences: Tensor
    tail: Tensor
    moves: Tensor | None = None
    use_splitk: bool = False

    @property
    def row_positions(self) -> Tensor:
        """Positions of the rows of all sequences, one after another, int64 [1, B * T]."""
        return one_row_of_rows(self.positions)


@dataclass(frozen=True, slots=True)
class ChunkEmbeds:
    """Rows of a prompt chunk given as embeddings instead of token ids.

    `embeddings` [1, T, H] replace the scaled rows of the embedding table. `last_visible` int64 [T]
    is the last position that such a row sees in sliding layers, within the chunk: the last row of
    its image, or its own position. -1 marks a row that is a token.
    """

    embeddings: Tensor
    last_visible: Tensor

    def merge(self, stream: Tensor) -> Tensor:
        """Replace rows of `stream` [1, T, H], which was embedded from tokens; same shape."""
        is_embedding = (self.last_visible >= 0).view(1, -1, 1)
        return torch.where(is_embedding, self.embeddings, stream)


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Rows at consecutive positions `input_pos` int64 [T] of one `sequence` int64 [1].

    Slot equals position, and a row sees every position before it. With `use_prompt_kernel` layers
    attend through the operator for prompts. `embeds` replaces some rows by embeddings.
    """

    input_pos: Tensor
    sequence: Tensor
    use_prompt_kernel: bool = False
    embeds: ChunkEmbeds | None = None

    @property
    def row_positions(self) -> Tensor:
        """Positions of the rows, int64 [1, T], in the same layout as those of a `Step`."""
        return self.input_pos.unsqueeze(0)

    @property
    def last_visible(self) -> Tensor | None:
        """The last position that each row sees in sliding layers, int64 [T], if any is set."""
        return None if self.embeds is None else self.embeds.last_visible


Rows = Step | PromptChunk


def one_row_of_rows(x: Tensor) -> Tensor:
    """Flatten [B, T, ...] to [1, B * T, ...]: XNNPACK allows only one dynamic dimension.

    Nothing is traced where B is 1.
    """
    return x if isinstance(x.shape[0], int) and x.shape[0] == 1 else x.flatten(0, 1).unsqueeze(0)


def rows_of_sequences(x: Tensor, like: Tensor) -> Tensor:
    """Unflatten [1, B * T, ...] to [B, T, ...], the leading dimensions of `like`."""
    batch, rows = like.shape[:2]
    return x if isinstance(batch, int) and batch == 1 else x.view(batch, rows, *x.shape[2:])


def chain_tail(positions: Tensor) -> Tensor:
    """Return tails of rows stored at their positions: int64 [..., T] -> int64 [..., T, TAIL]."""
    offsets = torch.arange(1 - TAIL, 1, device=positions.device)
    return (positions.unsqueeze(-1) + offsets).clamp(min=-1)


def chain_step(input_pos: Tensor, use_splitk: bool = False) -> Step:
    """Return consecutive rows of the first sequence, `input_pos` int64 [T], as a step."""
    positions = input_pos.unsqueeze(0)
    first = torch.zeros(1, dtype=torch.int64, device=input_pos.device)
    return Step(positions, first, chain_tail(positions), use_splitk=use_splitk)
