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
from eagle_aot.triton_kernels.ngram_lookup import LONGEST, continuations, lookup

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
