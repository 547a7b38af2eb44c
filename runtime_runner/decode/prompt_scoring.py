"""Log probabilities of a prompt's tokens, computed before its prefill."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.common.threads import single_threaded_on_cpu
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import Target, no_moves
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs, pack_logprobs, unpack_logprobs

ROWS_AT_ONCE = 16
"""Rows whose log-softmax is computed together: in float64, all rows of a window would take several
times the memory of their logits."""


class PromptScoring:
    """Runs a prompt window by window through `target_verify`, which returns logits of all rows.

    A row does not depend on its window, so the log probabilities are a function of artifact and
    prompt. The cached rows are not those of `prefill`: they are not reused, and the prompt's
    prefill starts at its beginning afterwards.
    """

    def __init__(
        self, target: Target, prompt: Sequence[int], sequence: Tensor, num_logprobs: int
    ) -> None:
        """Score in `sequence` int64 [1], with the `num_logprobs` likeliest tokens a position."""
        self._target, self._sequence, self._num_logprobs = target, sequence.clone(), num_logprobs
        self._text = torch.tensor([list(prompt)], dtype=torch.int64, device=sequence.device)
        self._next = 0

    @property
    def left(self) -> int:
        """How many tokens remain to be scored."""
        return self._text.shape[1] - self._next

    def run_window(self) -> list[TokenLogprobs]:
        """Score as many tokens as a step has rows, and wait for the device.

        The prompt's first token comes without a log probability: no row precedes it.
        """
        first = [] if self._next else [TokenLogprobs(int(self._text[0, 0]), None)]
        start = max(self._next, 1)
        self._next = min(start + self._target.max_rows, self._text.shape[1])
        return first + (self._score(start, self._next) if start < self._next else [])

    def _score(self, start: int, stop: int) -> list[TokenLogprobs]:
        """Return log probabilities of positions `start` to `stop`, from the rows before each."""
        logits, tokens = self._logits(start - 1, stop - 1), self._text[:, start:stop]
        parts = zip(logits.split(ROWS_AT_ONCE, 1), tokens.split(ROWS_AT_ONCE, 1), strict=True)
        with single_threaded_on_cpu(logits):
            scores = torch.cat([pack_logprobs(rows, ids) for rows, ids in parts], dim=1)
        return [
            token.first(self._num_logprobs) for token in unpack_logprobs(scores, stop - start)[0]
        ]

    def _logits(self, start: int, stop: int) -> Tensor:
        """Return the logits of the rows at positions `start` to `stop`, float32 [1, T, V]."""
        tail_length, device = self._target.tail_length, self._text.device
        first = torch.tensor([start], device=device)
        step = chain_rows(self._text[:, start:stop], first, self._sequence, tail_length)
        return self._target.verify(step, no_moves(1, tail_length, device)).logits.float()
