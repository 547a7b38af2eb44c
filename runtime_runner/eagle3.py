"""An artifact's methods as the verifier and the drafter of the loop."""

from collections.abc import Sequence

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

    def forward(self, tokens: Sequence[int], start: int) -> tuple[list[int], Tensor]:
        """Tokens at positions `start`, ...: greedy ids and fused features [1, T, H]."""
        method = PREFILL if len(tokens) >= self._constants.min_prefill_chunk else TARGET_VERIFY
        greedy, features = self._executor.run(method, *rows(tokens, start))
        return greedy[0].tolist(), features


class Eagle3Drafter:
    """The draft head behind `draft_decode`: a chain on its own recurrent features."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._draft = -1
        self._feature = torch.empty(0)
        self._end = 0

    def extend(self, tokens: Sequence[int], features: Tensor, start: int) -> None:
        """Commit slots; the last of them proposes the first draft for free."""
        self._draft, self._feature = self._step(tokens, features, start)
        self._end = start + len(tokens)

    def propose(self, count: int) -> list[int]:
        """A chain of `count` drafts. Its slots are overwritten by the next `extend`."""
        drafts, feature = [self._draft][:count], self._feature
        for slot in range(self._end, self._end + count - 1):
            draft, feature = self._step(drafts[-1:], feature, slot)
            drafts.append(draft)
        return drafts

    def _step(self, tokens: Sequence[int], features: Tensor, start: int) -> tuple[int, Tensor]:
        token_row, input_pos = rows(tokens, start)
        drafts, recurrent = self._executor.run(DRAFT_DECODE, token_row, features, input_pos)
        return int(drafts[0, -1]), recurrent[:, -1:]


def rows(tokens: Sequence[int], start: int) -> tuple[Tensor, Tensor]:
    """Token ids int64 [1, T] and their positions int64 [T]."""
    return torch.tensor([list(tokens)]), torch.arange(start, start + len(tokens))
