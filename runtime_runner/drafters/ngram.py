"""Prompt lookup: proposes what followed the last tokens at their latest earlier occurrence.

All tokens are in one tensor, so that its rounds can be recorded.
"""

from typing import Self

import torch
from torch import Tensor

from eagle_aot.artifact import NGRAM, Constants, Manifest
from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.triton_kernels.device import launches_for

LONGEST = 3
"""Maximum number of last tokens that are looked up."""
UNKNOWN = -1
"""No token: before a text, and its first one, which no row predicts."""


class NgramDrafter:
    """Keeps the tokens of all sequences in one tensor, as a recorded round needs.

    A chain copies what follows the latest longest match of the last `LONGEST` tokens. Beyond the
    end of the text it continues with its own drafts. If the last token did not occur before, it is
    repeated: the rows of a round cost the same in any case, and otherwise the beginning of a
    repetition would never be drafted.
    """

    kind = NGRAM
    grows_trees = False
    reads_features = False

    def __init__(self, constants: Constants, device: torch.device | str) -> None:
        """Allocate the full context for every sequence of the artifact."""
        # Unknown tokens come first, then the text, what a last round may accept, and a column for
        # masked rows. The token after position p is in column p + LONGEST.
        self._columns = LONGEST - 1 + constants.max_seq_len + constants.tail + 1
        shape = constants.max_batch_size, self._columns
        self._tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self._tokens[:, :LONGEST] = UNKNOWN

    @classmethod
    def open(
        cls, executor: Executor, constants: Constants, target_ids: Tensor | None, manifest: Manifest
    ) -> Self:
        """Make the drafter of an opened artifact; `target_ids` int64 [Vd] are not used."""
        return cls(constants, executor.device)

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Write the tokens of a path, and after it some that the next ones overwrite.

        `features` [B, T, H] are not used.
        """
        first = accepted.bonus_position.unsqueeze(1)
        columns = first + arange_cached(LONGEST, LONGEST + accepted.tokens.shape[1], first.device)
        spare = arange_cached(self._columns - 1, self._columns, first.device)
        column = torch.where(first >= 0, columns, spare)
        self._tokens[accepted.sequences.unsqueeze(1), column] = accepted.tokens

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Write tokens as `observe` does; `features` [B, P, H] are not used.

        Returns bool [B, P]: which of them would have been the first draft at its position.
        """
        self.observe(accepted, features)
        tokens = self._tokens.index_select(0, accepted.sequences)
        offsets = arange_cached(0, accepted.tokens.shape[1], tokens.device)
        earlier = lookup(tokens, accepted.bonus_position.unsqueeze(1) + offsets)
        return tokens[:, LONGEST:].gather(1, earlier) == accepted.tokens

    def restore_prefix(self, tokens: Tensor, sequence: Tensor) -> None:
        """Write the tokens int64 [1, T] of reused rows of `sequence` int64 [1]."""
        following = tokens[:, 1:]
        rows = torch.arange(following.shape[1], device=tokens.device)
        self.observe(committed(following, rows, sequence), tokens[..., :0])

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return a chain."""
        return Draft(continuations(self._tokens, batch.sequences, batch.position, shape.depth))


def continuations(tokens: Tensor, sequences: Tensor, last: Tensor, count: int) -> Tensor:
    """Return what followed the latest longest match of the last `LONGEST` tokens, int64 [B, count].

    Row `sequences[b]` of `tokens` int64 [S, columns] is known up to the position `last[b]`, both
    int64 [B], negative for padding: the token at position p is in column p + `LONGEST` - 1. Beyond
    the end of the text it continues with what was copied. A token that did not occur before is
    repeated.
    """
    if not launches_for(tokens):
        return continuations_reference(tokens, sequences, last, count)
    from eagle_aot.triton_kernels.ngram_lookup import launch

    return launch(tokens, sequences, last, count, LONGEST)


def continuations_reference(tokens: Tensor, sequences: Tensor, last: Tensor, count: int) -> Tensor:
    """Return what `continuations` returns, [B, count]."""
    own = tokens.index_select(0, sequences)
    end = last.unsqueeze(1).clamp(min=1)  # padding has a continuation as well
    earlier = lookup(own, end)
    offsets = arange_cached(0, count, tokens.device) % (end - earlier)
    return own[:, LONGEST:].gather(1, earlier + offsets)


def lookup(tokens: Tensor, last: Tensor) -> Tensor:
    """Return the latest position before `last` that ends a longest match of the last tokens.

    `tokens` int64 [B, columns] are known up to the positions `last` int64 [B, P], from 1 on.
    Returns int64 [B, P]: `last - 1` if the token at `last` did not occur before.

    Of positions without a match `last - 1` has the largest number, so it needs no case of its own.
    """
    windows = tokens.unfold(1, LONGEST, 1)  # [B, positions, LONGEST]
    positions = windows.shape[1]
    columns = last.unsqueeze(-1) + arange_cached(0, LONGEST, tokens.device)
    query = tokens.gather(1, columns.flatten(1)).view(*last.shape, 1, LONGEST)
    same = (windows.unsqueeze(1) == query).view(torch.int8)
    length = same[..., 0]  # [B, P, positions]
    for following in same[..., 1:].unbind(-1):
        length = following * (length + 1)
    ends = arange_cached(0, positions, tokens.device)
    by_length = torch.add(ends, length, alpha=positions)
    best = (by_length * (ends < last.unsqueeze(-1))).amax(dim=-1)
    return best % positions
