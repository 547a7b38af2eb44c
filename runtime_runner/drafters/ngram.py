"""Prompt lookup: what followed the last tokens where they stood before, proposed without a model.

The texts lie in a tensor and the lookup is a comparison of it with itself, shifted, so that a round
with it can be recorded.
"""

import torch
from torch import Tensor

from eagle_aot.artifact import NGRAM, Constants
from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.sampling.sampler import Sampler

LONGEST = 3
"""Last tokens that are looked up at most."""
UNKNOWN = -1
"""Stands for no token: before a text, and for its first one, which no row predicts."""


class NgramDrafter:
    """Keeps the texts of all sequences in one tensor, as a recorded round needs.

    A chain copies what follows the latest place where most of the last `LONGEST` tokens stood
    before. Beyond the end of the text it continues with its own drafts. Where not even the last
    token stood before, it repeats that one: the rows of a round are paid for in any case, and
    otherwise the beginning of a repetition would never be drafted.
    """

    kind = NGRAM
    grows_trees = False
    reads_features = False

    def __init__(self, constants: Constants, device: torch.device | str) -> None:
        """Make room for every sequence of the artifact, each of the full context."""
        # First unknown tokens, last what a final round may accept, and a column for what is masked.
        self._columns = LONGEST - 1 + constants.max_seq_len + constants.tail + 1
        shape = constants.max_batch_size, self._columns
        self._texts = torch.zeros(shape, dtype=torch.int64, device=device)
        self._texts[:, :LONGEST] = UNKNOWN

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Write the tokens of a path, and after it some that the next ones overwrite."""
        first = accepted.first.unsqueeze(1)
        step = arange_cached(0, accepted.tokens.shape[1], first.device)
        column = torch.where(first >= 0, column_of(first + 1 + step), self._columns - 1)
        self._texts[accepted.sequences.unsqueeze(1), column] = accepted.tokens

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Write tokens as `observe` does.

        Returns bool [B, P]: which of them would have been the first draft at its position.
        """
        self.observe(accepted, features)
        texts = self._texts.index_select(0, accepted.sequences)
        step = arange_cached(0, accepted.tokens.shape[1], texts.device)
        earlier = lookup(texts, accepted.first.unsqueeze(1) + step)
        return texts.gather(1, column_of(earlier + 1)) == accepted.tokens

    def recall(self, tokens: Tensor, sequence: Tensor) -> None:
        """Write the tokens int64 [1, T] of rows that are reused."""
        following = tokens[:, 1:]
        rows = torch.arange(following.shape[1], device=tokens.device)
        self.observe(committed(following, rows, sequence), tokens[..., :0])

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Returns a chain."""
        texts = self._texts.index_select(0, batch.sequences)
        last = batch.position.unsqueeze(1).clamp(min=1)  # padding sequences draft as well
        earlier = lookup(texts, last)
        step = arange_cached(0, shape.depth, texts.device) % (last - earlier)
        return Draft(texts.gather(1, column_of(earlier + 1 + step)))


def column_of(position: Tensor) -> Tensor:
    """Returns the column of a position's token."""
    return position + (LONGEST - 1)


def lookup(texts: Tensor, last: Tensor) -> Tensor:
    """Returns the latest position before `last` that ends a longest match of the last tokens.

    texts int64 [B, columns]; last int64 [B, P], positions from 1 on up to which each text is known.
    Returns int64 [B, P]: `last - 1` where the token at `last` did not stand before.
    """
    positions = texts.shape[1] - (LONGEST - 1)
    ends = arange_cached(0, positions, texts.device)
    same = ends < last.unsqueeze(-1)  # [B, P, positions]
    length = torch.zeros_like(ends)
    for back in range(LONGEST):
        token = texts.gather(1, column_of(last - back))
        before = texts[:, LONGEST - 1 - back :][:, :positions]
        same = same & (before.unsqueeze(1) == token.unsqueeze(-1))
        length = length + same
    best = (length * positions + ends).amax(dim=-1)
    return torch.where(best < positions, last - 1, best % positions)
