"""What drafts chains and trees on recurrent features, one token or one depth a forward.

Shifted pairing: a row holds token j + 1 and the feature of position j, and says what token j + 2
may be. So a corrected token needs no target forward of its own.
"""

import torch
from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.outlook import WIDTH, packed
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows, arange_cached, chain_rows
from eagle_aot.runtime_runner.drafters.growth import Expanded, Trunk, grow_likely, grow_paths
from eagle_aot.runtime_runner.drafters.head import HeadDrafter
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class RecurrentDrafter(HeadDrafter):
    """State of all sequences, in the same tensors for good, as a recorded round needs.

    Of each: what the drafter says behind the last committed row, which comes for free, and the
    recurrent feature of that row. A row behind the last is for those who only fill a place.
    `method` is what runs its rows.
    """

    method: str

    def __init__(self, executor: Executor, constants: Constants, target_ids: Tensor | None) -> None:
        """`target_ids` int64 [Vd] are the target's ids of the drafter's; None where they are the
        same."""
        super().__init__(executor, constants, target_ids)
        self._logits: Tensor | None = None  # [sequences + 1, 1, Vd]
        self._feature: Tensor | None = None  # [sequences + 1, 1, H]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Commit an accepted path."""
        raise NotImplementedError

    def placed(self, running: BatchState, rows: StepRows) -> StepRows:
        """Rows of drafts where the drafter runs them: those given lie in slots of its own behind
        the bonus token's."""
        return rows

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Commit slots that were left out, as `observe` does.

        Returns bool [B, P]: which of the tokens would have been the first draft at its place.
        """
        first = self.logits(accepted.sequences)
        logits = self._commit(accepted, features)
        places = arange_cached(1, accepted.tokens.shape[1] + 1, features.device)
        rows = torch.cat((first, logits[:, :-1]), dim=1), accepted.first.unsqueeze(1) + places
        return self._choice(sampler, *rows, accepted.sequences) == accepted.tokens

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """Drafts whose slots are overwritten by what is committed next."""
        assert self._feature is not None, "observe comes before this"
        logits = self.logits(running.sequences)
        feature = self._feature.index_select(0, running.sequences)
        if shape.is_chain:
            return self._chain(running, shape.depth, logits, feature)
        trunk = Trunk(running.position, running.sequences, self.tail)
        grow = grow_likely if shape.paths is None else grow_paths
        sampler, where = running.sampler, running.position.unsqueeze(1) + 1

        def expand(rows: StepRows, features: Tensor, topk: int) -> Expanded:
            found = self._run(self.placed(running, rows), features)
            return self._expanded(sampler, *found, rows.positions + 2, rows.sequences, topk)

        first = self._expanded(sampler, logits, feature, where, running.sequences, shape.topk)
        return grow(shape, trunk, first, expand)

    def logits(self, sequences: Tensor) -> Tensor:
        """What the drafter says behind their last committed slots, float32 [B, 1, Vd], of its own
        ids.

        `sequences` int64 [B].
        """
        assert self._logits is not None, "observe comes before this"
        return self._logits.index_select(0, sequences)

    def outlook(self, sequences: Tensor) -> Tensor:
        """What the drafter says behind their last committed slots, as `packed` makes it."""
        assert self._feature is not None, "observe comes before this"
        logits = self.logits(sequences)
        found = self._likeliest_of(logits, self._feature.index_select(0, sequences), WIDTH)
        return packed(found.tokens[:, 0], found.scores[:, 0])

    def _chain(self, running: BatchState, length: int, logits: Tensor, feature: Tensor) -> Draft:
        place = running.position.unsqueeze(1) + 1
        drafts = [self._choice(running.sampler, logits, place, running.sequences)]
        places = Trunk(running.position, running.sequences, self.tail).ahead(length - 1)
        for step in range(length - 1):
            # The slot of the bonus token's position pairs with the first draft.
            slot = places[:, step]
            rows = chain_rows(drafts[-1], slot, running.sequences, self.tail)
            logits, feature = self._run(self.placed(running, rows), feature)
            place = slot.unsqueeze(1) + 2
            drafts.append(self._choice(running.sampler, logits, place, running.sequences))
        return Draft(torch.cat(drafts, dim=1))

    def _commit(self, accepted: Accepted, features: Tensor) -> Tensor:
        """The logits behind each slot, float32 [B, P, Vd]."""
        wide = accepted.rows.unsqueeze(-1).expand(-1, -1, features.shape[-1])
        rows = chain_rows(
            accepted.tokens, accepted.first, accepted.sequences, self.tail, accepted.count + 1
        )
        logits, recurrent = self._run(rows, features.gather(1, wide))
        self._keep(accepted, logits, recurrent, accepted.count)
        return logits

    def _keep(self, accepted: Accepted, logits: Tensor, recurrent: Tensor, last: Tensor) -> None:
        """Of each sequence the row `last` int64 [B]."""
        sequences = torch.where(accepted.first < 0, self.sequences, accepted.sequences)
        if self._logits is None or self._feature is None:
            self._logits = logits.new_zeros(self.sequences + 1, 1, logits.shape[-1])
            self._feature = recurrent.new_zeros(self.sequences + 1, 1, recurrent.shape[-1])
        for kept, found in ((self._logits, logits), (self._feature, recurrent)):
            at = last.view(-1, 1, 1).expand(-1, -1, found.shape[-1])
            kept.index_copy_(0, sequences, found.gather(1, at))

    def _run(self, rows: StepRows, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits behind each slot, float32 [B, T, Vd], and the recurrent features."""
        logits, recurrent = self.executor.run(self.method, *rows.inputs, features)
        return logits, recurrent
