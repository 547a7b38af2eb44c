"""A DFlash head behind `dflash_context` and `dflash_block`: all drafts of a round in one forward.

What it says of a place does not depend on the drafts before it, so a tree has the same tokens
behind each of its nodes at a depth.
"""

import torch
from torch import Tensor

from eagle_aot.artifact import DFLASH, DFLASH_BLOCK, DFLASH_CONTEXT, Constants
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, arange_cached, chain_rows, masked
from eagle_aot.runtime_runner.drafters.head import HeadDrafter
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class DFlashDrafter(HeadDrafter):
    """Of a text the head's caches hold all but the bonus token.

    A block has the rows that the head was trained with, or more where more drafts are asked for.
    """

    kind = DFLASH

    def __init__(
        self, executor: Executor, constants: Constants, target_ids: Tensor | None, block_size: int
    ) -> None:
        super().__init__(executor, constants, target_ids)
        self.block_size = block_size
        size = self.sequences + 1, 1  # a row more for those who only fill a place
        self._bonus = torch.zeros(size, dtype=torch.int64, device=executor.device)

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Store what an accepted path, or a prompt's chunk, has become."""
        wide = accepted.rows.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        step = arange_cached(0, accepted.tokens.shape[1], features.device)
        first, last = accepted.first.unsqueeze(1), accepted.count.unsqueeze(1)
        positions = masked((first >= 0) & (step <= last), first + step)
        self._store(positions, accepted.sequences, features.gather(1, wide))
        self._keep(accepted)

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Store a text that was left out, a block's length at a time.

        Returns bool [B, P]: which of its tokens blocks would have drafted of which each begins
        where the one before ends.
        """
        tokens, drafts = accepted.tokens, self.block_size - 1
        known = torch.cat((self._bonus.index_select(0, accepted.sequences), tokens), dim=1)
        expected = []
        for start in range(0, tokens.shape[1], drafts):
            rows = slice(start, start + drafts)
            first, following = accepted.first + start, tokens[:, rows]
            ahead = arange_cached(0, following.shape[1], tokens.device)
            logits = self._block(
                known[:, start : start + 1], first, accepted.sequences, following.shape[1]
            )
            places = first.unsqueeze(1) + 1 + ahead
            expected.append(self._choice(sampler, logits, places, accepted.sequences) == following)
            self._store(first.unsqueeze(1) + ahead, accepted.sequences, features[:, rows])
        self._keep(accepted)
        return torch.cat(expected, dim=1)

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """Drafts of one block, whose own keys are overwritten by what is committed next."""
        where = running.position, running.sequences
        logits = self._block(running.bonus, *where, shape.depth)
        return self._at_once(running, shape, logits)

    def _store(self, positions: Tensor, sequences: Tensor, features: Tensor) -> None:
        self.executor.run(DFLASH_CONTEXT, positions, sequences, features)

    def _keep(self, accepted: Accepted) -> None:
        where = torch.where(accepted.first < 0, self.sequences, accepted.sequences)
        self._bonus.index_copy_(0, where, accepted.last_token)

    def _block(self, bonus: Tensor, first: Tensor, sequences: Tensor, depth: int) -> Tensor:
        """What may stand at the `depth` places behind `bonus` int64 [B, 1], which is at `first`
        int64 [B]: logits float32 [B, depth, Vd]."""
        rows = max(self.block_size, depth + 1)
        step = chain_rows(bonus.expand(-1, rows), first, sequences, self.tail)
        (logits,) = self.executor.run(DFLASH_BLOCK, *step.inputs)
        return logits[:, 1 : depth + 1]
