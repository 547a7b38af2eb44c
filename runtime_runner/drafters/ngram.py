"""Prompt lookup: what followed the last tokens where they stood before, proposed without a model.

The texts lie in a tensor and the lookup is a comparison of it with itself, shifted, so that a round
with it can be recorded.
"""

import torch
from torch import Tensor

from eagle_aot.artifact import NGRAM, Constants
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, arange_cached
from eagle_aot.runtime_runner.sampling.sampler import Sampler

LONGEST = 3
"""Last tokens that are looked up at most."""
UNTOLD = -1
"""No token: in front of a text, and its first one, behind no row of which anything is decided."""


class NgramDrafter:
    """The texts of all sequences, in the same tensor for good, as a recorded round needs.

    A chain follows the place where most of the last `LONGEST` tokens stood before, the latest of
    equals. Where that leads beyond the text's end the chain goes on with its own drafts, and where
    not even the last token stood before it repeats that one: the rows of a round are paid for in
    any case, and a text that comes to repeat a token has nothing else to be seen by.
    """

    kind = NGRAM
    grows_trees = False

    def __init__(self, constants: Constants, device: torch.device | str) -> None:
        """Of every sequence that the artifact has caches for, in a context of its length."""
        # In front what is untold, behind what a last round may accept, and a column for the rest.
        self._columns = LONGEST - 1 + constants.max_seq_len + constants.tail + 1
        shape = constants.max_batch_size, self._columns
        self._texts = torch.zeros(shape, dtype=torch.int64, device=device)
        self._texts[:, :LONGEST] = UNTOLD

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Write down the tokens of a path, and behind it what the next ones overwrite."""
        first = accepted.first.unsqueeze(1)
        step = arange_cached(0, accepted.tokens.shape[1], first.device)
        column = torch.where(first >= 0, column_of(first + 1 + step), self._columns - 1)
        self._texts[accepted.sequences.unsqueeze(1), column] = accepted.tokens

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Write down tokens as `observe` does.

        Returns bool [B, P]: which of them would have been the first draft at its place.
        """
        self.observe(accepted, features)
        texts = self._texts.index_select(0, accepted.sequences)
        step = arange_cached(0, accepted.tokens.shape[1], texts.device)
        earlier = lookup(texts, accepted.first.unsqueeze(1) + step)
        return texts.gather(1, column_of(earlier + 1)) == accepted.tokens

    def recall(self, tokens: Tensor, sequence: Tensor) -> None:
        """Write down the tokens of rows that are kept."""
        following = tokens[:, 1:]
        rows = torch.arange(following.shape[1], device=tokens.device)
        self.observe(committed(following, rows, sequence), tokens[..., :0])

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """A chain."""
        texts = self._texts.index_select(0, running.sequences)
        last = running.position.unsqueeze(1).clamp(min=1)  # whoever fills a place drafts as well
        earlier = lookup(texts, last)
        step = arange_cached(0, shape.depth, texts.device) % (last - earlier)
        return Draft(texts.gather(1, column_of(earlier + 1 + step)))


def column_of(position: Tensor) -> Tensor:
    """Where a position's token lies in its text."""
    return position + (LONGEST - 1)


def lookup(texts: Tensor, last: Tensor) -> Tensor:
    """The place before `last` that ends as many of the same tokens as any, and the latest of them.

    texts int64 [B, columns]; last int64 [B, P], places from 1 on up to which each text is known.
    Returns int64 [B, P]: `last - 1` where the token at `last` did not stand before.
    """
    places = texts.shape[1] - (LONGEST - 1)
    ends = arange_cached(0, places, texts.device)
    same = ends < last.unsqueeze(-1)  # [B, P, places]
    length = torch.zeros_like(ends)
    for back in range(LONGEST):
        token = texts.gather(1, column_of(last - back))
        before = texts[:, LONGEST - 1 - back :][:, :places]
        same = same & (before.unsqueeze(1) == token.unsqueeze(-1))
        length = length + same
    best = (length * places + ends).amax(dim=-1)
    return torch.where(best < places, last - 1, best % places)
