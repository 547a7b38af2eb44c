"""Drafters that draft chains and trees from recurrent features, one token or depth a forward.

Shifted pairing: a row holds token j + 1 and the feature of position j, and predicts token j + 2.
So a corrected token needs no target forward of its own.
"""

import torch
from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows, chain_rows, chain_tail
from eagle_aot.runtime_runner.drafters.growth import Expanded, Trunk, grow_likely, grow_paths
from eagle_aot.runtime_runner.drafters.head import HeadDrafter
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class RecurrentDrafter(HeadDrafter):
    """Keeps the state of all sequences in the same tensors, as a recorded round needs.

    The state of a sequence is the logits and the recurrent feature of its last committed row; one
    more row is for padding sequences. `method` is the program's method that runs the head's rows.
    """

    method: str

    def __init__(self, executor: Executor, constants: Constants, target_ids: Tensor | None) -> None:
        """`target_ids` int64 [Vd] are the target's ids of the draft ids, None if they are the
        same."""
        super().__init__(executor, constants, target_ids)
        self._logits: Tensor | None = None  # [sequences + 1, 1, Vd]
        self._feature: Tensor | None = None  # [sequences + 1, 1, H]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Commit an accepted path with features [B, T, H], or a prompt's chunk."""
        raise NotImplementedError

    def placed(self, batch: BatchState, rows: StepRows) -> StepRows:
        """Return the rows of drafts as the head runs them; `rows` have the slots after the bonus
        token's."""
        return rows

    def chain_places(self, batch: BatchState, count: int) -> tuple[Tensor, Tensor]:
        """Return the positions int64 [B, count] and tails int64 [B, count, D] at which the head
        runs the first drafts of a chain."""
        # The slot of the bonus token's position pairs with the first draft.
        slots = Trunk(batch.position, batch.sequences, self.tail_length).ahead(count)
        return slots, chain_tail(slots, self.tail_length)

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Commit skipped slots with features [B, P, H], as `observe` does.

        Returns bool [B, P]: which of the tokens would have been the first draft at its position.
        """
        first = self.logits(accepted.sequences)
        logits = torch.cat((first, self._commit(accepted, features)[:, :-1]), dim=1)
        offsets = arange_cached(1, accepted.tokens.shape[1] + 1, features.device)
        positions = accepted.bonus_position.unsqueeze(1) + offsets
        return self._choose(sampler, logits, positions, accepted.sequences) == accepted.tokens

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return drafts, whose slots the next committed rows overwrite."""
        assert self._feature is not None, "observe comes before this"
        logits = self._allowed_first(batch.sampler, self.logits(batch.sequences), batch.sequences)
        feature = self._feature.index_select(0, batch.sequences)
        if shape.is_chain:
            return self._chain(batch, shape.depth, logits, feature)
        trunk = Trunk(batch.position, batch.sequences, self.tail_length)
        grow = grow_likely if shape.paths is None else grow_paths
        sampler, sequences = batch.sampler, batch.sequences

        def expand(rows: StepRows, features: Tensor, topk: int) -> Expanded:
            logits, recurrent = self._run(self.placed(batch, rows), features)
            return self._expand(sampler, logits, recurrent, rows.positions + 2, sequences, topk)

        position = batch.position.unsqueeze(1) + 1
        first = self._expand(sampler, logits, feature, position, sequences, shape.topk)
        return grow(shape, trunk, first, expand)

    def logits(self, sequences: Tensor) -> Tensor:
        """Return the logits of the last committed slots of `sequences` int64 [B], float32
        [B, 1, Vd]."""
        assert self._logits is not None, "observe comes before this"
        return self._logits.index_select(0, sequences)

    def _chain(self, batch: BatchState, length: int, logits: Tensor, feature: Tensor) -> Draft:
        positions = batch.position.unsqueeze(1) + arange_cached(1, length + 1, logits.device)
        drafts = [self._choose_draft(batch, logits, positions[:, :1], 0)]
        places, tails = self.chain_places(batch, length - 1)
        for step in range(1, length):
            place, tail = places[:, step - 1 : step], tails[:, step - 1 : step]
            rows = StepRows(drafts[-1], place, batch.sequences, tail)
            logits, feature = self._run(rows, feature)
            drafts.append(self._choose_draft(batch, logits, positions[:, step : step + 1], step))
        return Draft(torch.cat(drafts, dim=1))

    def _choose_draft(
        self, batch: BatchState, logits: Tensor, position: Tensor, depth: int
    ) -> Tensor:
        """Return the drafts int64 [B, 1] at `position` int64 [B, 1], after `depth` others: the
        choices from logits [B, 1, Vd], or tokens that must come."""
        sampler, sequences = batch.sampler, batch.sequences
        tokens = self._choose(sampler, logits, position, sequences)
        return sampler.masks.forced(tokens, depth, sequences) if sampler.is_constrained else tokens

    def _commit(self, accepted: Accepted, features: Tensor) -> Tensor:
        """Run committed slots with features [B, T, H] and keep the last one's results.

        Returns the logits of each slot, float32 [B, P, Vd].
        """
        rows_of_path = accepted.rows.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        rows = chain_rows(
            accepted.tokens,
            accepted.bonus_position,
            accepted.sequences,
            self.tail_length,
            accepted.count,
        )
        logits, recurrent = self._run(rows, features.gather(1, rows_of_path))
        self._keep(accepted, logits, recurrent)
        return logits

    def _keep(self, accepted: Accepted, logits: Tensor, recurrent: Tensor) -> None:
        """Keep the last row of the path of each sequence, of logits [B, T, Vd] and recurrent
        features [B, T, H]; if T is 1, the only one."""
        padding = arange_cached(self.sequences, self.sequences + 1, logits.device)
        sequences = torch.where(accepted.bonus_position < 0, padding, accepted.sequences)
        if self._logits is None or self._feature is None:
            self._logits = logits.new_zeros(self.sequences + 1, 1, logits.shape[-1])
            self._feature = recurrent.new_zeros(self.sequences + 1, 1, recurrent.shape[-1])
        for state, rows in ((self._logits, logits), (self._feature, recurrent)):
            if rows.shape[1] > 1:
                last = accepted.count.view(-1, 1, 1).expand(-1, -1, rows.shape[-1])
                rows = rows.gather(1, last)
            state.index_copy_(0, sequences, rows)

    def _run(self, rows: StepRows, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of each slot, float32 [B, T, Vd], and its recurrent features
        [B, T, H]."""
        logits, recurrent = self.executor.run(self.method, *rows.inputs, features)
        return logits, recurrent
