"""A DFlash head, run by `dflash_context` and `dflash_block`: all drafts of a round in one forward.

Its logits of a position do not depend on the drafts before it, so all nodes of a tree at one depth
have the same children.
"""

from typing import Self

import torch
from torch import Tensor

from eagle_aot.artifact import DFLASH, DFLASH_BLOCK, DFLASH_CONTEXT, Constants, Manifest
from eagle_aot.artifact.manifest import dflash_block_size
from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, chain_rows, masked
from eagle_aot.runtime_runner.drafters.head import HeadDrafter
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class DFlashDrafter(HeadDrafter):
    """Drafts a block at a time. The head's caches hold all of a text except the bonus token.

    A block has as many rows as in the head's training, or more where more drafts are requested.
    """

    kind = DFLASH
    method = DFLASH_BLOCK
    first_draft = 1
    """The first row of a block that predicts a draft; the bonus token's predicts nothing."""

    def __init__(
        self, executor: Executor, constants: Constants, target_ids: Tensor | None, block_size: int
    ) -> None:
        super().__init__(executor, constants, target_ids)
        self.block_size = block_size
        size = self.sequences + 1, 1  # the last row is for padding sequences
        self._bonus = torch.zeros(size, dtype=torch.int64, device=executor.device)

    @classmethod
    def open(
        cls, executor: Executor, constants: Constants, target_ids: Tensor | None, manifest: Manifest
    ) -> Self:
        """Make the drafter of an opened artifact; `target_ids` int64 [Vd] are as in `__init__`."""
        return cls(executor, constants, target_ids, dflash_block_size(manifest, cls.method))

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Store the features [B, T, H] of an accepted path, or of a prompt's chunk."""
        wide = accepted.rows.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        offsets = arange_cached(0, accepted.tokens.shape[1], features.device)
        first, last = accepted.bonus_position.unsqueeze(1), accepted.count.unsqueeze(1)
        positions = masked((first >= 0) & (offsets <= last), first + offsets)
        self._store(positions, accepted.sequences, features.gather(1, wide))
        self._keep(accepted)

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Store features [B, P, H] of skipped tokens, a block's length at a time.

        Returns bool [B, P]: which of the tokens the head would have drafted, in blocks that begin
        where the one before ends.
        """
        tokens, drafts = accepted.tokens, self.block_size - self.first_draft
        decided = torch.cat((self._bonus.index_select(0, accepted.sequences), tokens), dim=1)
        expected = []
        for start in range(0, tokens.shape[1], drafts):
            rows = slice(start, start + drafts)
            first, following = accepted.bonus_position + start, tokens[:, rows]
            ahead = arange_cached(0, following.shape[1], tokens.device)
            before = decided[:, start : start + following.shape[1]]
            outputs = self._block(before[:, :1], first, accepted.sequences, before.shape[1])
            positions = first.unsqueeze(1) + 1 + ahead
            drafted = self._drafted(sampler, outputs, before, positions, accepted.sequences)
            expected.append(drafted == following)
            self._store(first.unsqueeze(1) + ahead, accepted.sequences, features[:, rows])
        self._keep(accepted)
        return torch.cat(expected, dim=1)

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return the drafts of one block, whose keys the next committed rows overwrite."""
        (logits,) = self._block(batch.bonus, batch.position, batch.sequences, shape.depth)
        return self._draft_in_parallel(batch, shape, logits)

    def _drafted(
        self,
        sampler: Sampler,
        outputs: tuple[Tensor, ...],
        before: Tensor,
        positions: Tensor,
        sequences: Tensor,
    ) -> Tensor:
        """Return the drafts int64 [B, T] at `positions` int64 [B, T] of a block with these
        `outputs`, each after the token `before` it, int64 [B, T]."""
        return self._choose(sampler, outputs[0], positions, sequences)

    def _store(self, positions: Tensor, sequences: Tensor, features: Tensor) -> None:
        self.executor.run(DFLASH_CONTEXT, positions, sequences, features)

    def _keep(self, accepted: Accepted) -> None:
        sequences = torch.where(accepted.bonus_position < 0, self.sequences, accepted.sequences)
        self._bonus.index_copy_(0, sequences, accepted.last_token)

    def _block(
        self, bonus: Tensor, first: Tensor, sequences: Tensor, depth: int
    ) -> tuple[Tensor, ...]:
        """Return the method's outputs, such as logits float32 [B, depth, Vd], of the `depth`
        positions after `bonus` int64 [B, 1], which is at position `first` int64 [B]."""
        first_draft = self.first_draft
        rows = max(self.block_size, first_draft + depth)
        step = chain_rows(bonus.expand(-1, rows), first, sequences, self.tail_length)
        outputs = self.executor.run(self.method, *step.inputs)
        return tuple(output[:, first_draft : first_draft + depth] for output in outputs)
