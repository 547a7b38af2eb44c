"""An artifact's methods as the verifier and the drafter of a round."""

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, PREFILL, TARGET_VERIFY, Constants
from eagle_aot.runtime_runner.chunks import plan_chunks
from eagle_aot.runtime_runner.executors import Executor


class TargetVerifier:
    """The target behind `prefill` and `target_verify`, which share its caches."""

    def __init__(self, executor: Executor, constants: Constants) -> None:
        self._executor = executor
        self._constants = constants

    def plan_prompt(self, length: int) -> list[range]:
        """Chunks no longer than the sliding window, so that chunking does not change the result."""
        constants = self._constants
        longest = min(constants.max_prefill_chunk, constants.sliding_window or length)
        return plan_chunks(
            length, longest, constants.min_prefill_chunk, constants.max_verify_window
        )

    def forward(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [1, T] at `input_pos` [T]: greedy ids and fused features [1, T, H]."""
        short = tokens.shape[1] < self._constants.min_prefill_chunk
        method = TARGET_VERIFY if short else PREFILL
        greedy, features = self._executor.run(method, tokens, input_pos)
        return greedy, features


class Eagle3Drafter:
    """The draft head behind `draft_decode`: a chain on its own recurrent features.

    Its state lies in the same tensors for its whole life, as a recorded round needs.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._draft: Tensor | None = None  # follows the last committed slot, int64 [1, 1]
        self._feature = torch.empty(0)  # of that slot, [1, 1, H]
        self._slot = torch.empty(0)  # the next one, int64 [1]

    def extend(self, tokens: Tensor, features: Tensor, input_pos: Tensor, last: Tensor) -> None:
        """Commit slots; row `last` proposes the first draft for free.

        Padding rows write slots behind it, which nothing reads before they are written again.
        """
        self._commit(tokens, features, input_pos, last)

    def catch_up(self, tokens: Tensor, features: Tensor, input_pos: Tensor) -> Tensor:
        """Commit slots that were left out, as `extend` takes them.

        Returns bool [1, T]: which of `tokens` would have been the first draft at its place.
        """
        assert self._draft is not None, "extend comes before catch_up"
        first = self._draft.clone()
        drafts = self._commit(tokens, features, input_pos, input_pos[-1:] - input_pos[0])
        return torch.cat((first, drafts[:, :-1]), dim=1) == tokens

    def _commit(self, tokens: Tensor, features: Tensor, input_pos: Tensor, last: Tensor) -> Tensor:
        """The draft behind each slot, int64 [1, T]."""
        drafts, recurrent = self._executor.run(DRAFT_DECODE, tokens, features, input_pos)
        draft, feature = drafts.index_select(1, last), recurrent.index_select(1, last)
        slot = input_pos.index_select(0, last) + 1
        if self._draft is None:
            self._draft, self._feature, self._slot = draft, feature, slot
        else:
            self._draft.copy_(draft)
            self._feature.copy_(feature)
            self._slot.copy_(slot)
        return drafts

    def propose(self, count: int) -> Tensor:
        """A chain of `count` drafts [1, count]. Its slots are overwritten by the next `extend`."""
        assert self._draft is not None, "extend comes before propose"
        draft, feature, slot = self._draft, self._feature, self._slot
        drafts = [draft]
        for step in range(count - 1):
            draft, feature = self._executor.run(DRAFT_DECODE, draft, feature, slot + step)
            drafts.append(draft)
        return torch.cat(drafts, dim=1)
