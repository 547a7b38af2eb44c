"""The EAGLE-3 draft head behind `draft_decode`: a chain on its own recurrent features.

Shifted pairing: draft slot j holds token j + 1 and the feature of position j. So a corrected token
needs no target forward of its own.
"""

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, EAGLE3, Constants
from eagle_aot.runtime_runner.acceptance import Accepted
from eagle_aot.runtime_runner.executors import Executor
from eagle_aot.runtime_runner.round import Running
from eagle_aot.runtime_runner.sampling import greedy
from eagle_aot.runtime_runner.step import Draft, StepRows, chain_rows


class Eagle3Drafter:
    """State of all sequences, in the same tensors for good, as a recorded round needs.

    Of each: the first draft, which follows the last committed slot and comes for free, and the
    recurrent feature of that slot. A row behind the last is for those who only fill a place.
    """

    kind = EAGLE3

    def __init__(self, executor: Executor, constants: Constants, target_ids: Tensor | None) -> None:
        """`target_ids` int64 [Vd] are the target's ids of the head's; None where they are the
        same."""
        self._executor = executor
        self._tail, self._sequences = constants.tail, constants.max_batch_size
        self._target_ids = target_ids
        self._first = torch.zeros(self._sequences + 1, 1, dtype=torch.int64, device=executor.device)
        self._feature: Tensor | None = None  # [sequences + 1, 1, H]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Commit the slots of an accepted path."""
        self._commit(accepted, features)

    def catch_up(self, accepted: Accepted, features: Tensor) -> Tensor:
        """Commit slots that were left out, as `observe` does.

        Returns bool [B, P]: which of the tokens would have been the first draft at its place.
        """
        first = self._first.index_select(0, accepted.sequences)
        drafts = self._commit(accepted, features)
        return torch.cat((first, drafts[:, :-1]), dim=1) == accepted.tokens

    def propose(self, running: Running, count: int) -> Draft:
        """A chain of `count` drafts. Its slots are overwritten by what is committed next."""
        assert self._feature is not None, "observe comes before propose"
        sequences = running.sequences
        draft = self._first.index_select(0, sequences)
        feature = self._feature.index_select(0, sequences)
        drafts = [draft]
        for step in range(count - 1):
            # The slot of the bonus token's position pairs with the first draft.
            slot = torch.where(running.position < 0, -1, running.position + step)
            rows = chain_rows(draft, slot, sequences, self._tail)
            draft, feature = self._run(rows, feature)
            drafts.append(draft)
        return Draft(torch.cat(drafts, dim=1))

    def _commit(self, accepted: Accepted, features: Tensor) -> Tensor:
        """The draft behind each slot, int64 [B, P]."""
        wide = accepted.rows.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        rows = chain_rows(
            accepted.tokens, accepted.first, accepted.sequences, self._tail, accepted.count + 1
        )
        drafts, recurrent = self._run(rows, features.gather(1, wide))
        last = accepted.count.unsqueeze(1)
        keeps = torch.where(accepted.first < 0, self._sequences, accepted.sequences)
        self._keep(keeps, drafts.gather(1, last), recurrent, last)
        return drafts

    def _keep(self, sequences: Tensor, first: Tensor, recurrent: Tensor, last: Tensor) -> None:
        if self._feature is None:
            self._feature = recurrent.new_zeros(self._sequences + 1, 1, recurrent.shape[-1])
        at = last.unsqueeze(-1).expand(-1, -1, recurrent.shape[-1])
        self._first.index_copy_(0, sequences, first)
        self._feature.index_copy_(0, sequences, recurrent.gather(1, at))

    def _run(self, rows: StepRows, features: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely token behind each slot, int64 [B, T], and the recurrent features."""
        logits, recurrent = self._executor.run(DRAFT_DECODE, *rows.inputs, features)
        drafts = greedy(logits)
        return drafts if self._target_ids is None else self._target_ids[drafts], recurrent
