"""How likely the tokens of a prompt are, found before the prompt is run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.common.threads import one_on_a_cpu
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import Target, no_moves
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.logprobs import packed, unpacked

ROWS_AT_ONCE = 16
"""Rows whose logarithms are found together: numbers of 64 bits for each token of a vocabulary, of
all rows of a window at once, would be several times its logits."""


class PromptScoring:
    """Window after window of a prompt through `target_verify`, whose rows all have logits.

    No row feels its window, so what is told is a function of artifact and prompt. The rows that it
    leaves in the cache are not those that `prefill` would: nobody may go on from them, and the
    prompt is run from its beginning behind it.
    """

    def __init__(self, target: Target, prompt: Sequence[int], sequence: Tensor, most: int) -> None:
        """In the sequence int64 [1]; of each token so many of the likeliest at its place are
        told."""
        self._target, self._sequence, self._most = target, sequence.clone(), most
        self._text = torch.tensor([list(prompt)], dtype=torch.int64, device=sequence.device)
        self._next = 0

    @property
    def left(self) -> int:
        """Tokens that are still to be told of."""
        return self._text.shape[1] - self._next

    def run_window(self) -> list[TokenLogprobs]:
        """Those of the next tokens, as many as a step has rows: waits for the device. The first
        token comes with them, which nothing stands before, and so no row tells of it."""
        first = [] if self._next else [TokenLogprobs(int(self._text[0, 0]), None)]
        start = max(self._next, 1)
        self._next = min(start + self._target.max_rows, self._text.shape[1])
        return first + (self._told(start, self._next) if start < self._next else [])

    def _told(self, start: int, stop: int) -> list[TokenLogprobs]:
        """Of the tokens at these positions, by the rows of those before them."""
        logits, tokens = self._logits(start - 1, stop - 1), self._text[:, start:stop]
        parts = zip(logits.split(ROWS_AT_ONCE, 1), tokens.split(ROWS_AT_ONCE, 1), strict=True)
        with one_on_a_cpu(logits):
            told = torch.cat([packed(*part) for part in parts], dim=1)
        return [one.first(self._most) for one in unpacked(told, stop - start)[0]]

    def _logits(self, start: int, stop: int) -> Tensor:
        """Of the rows at these positions, float32 [1, T, V]."""
        tail, device = self._target.tail, self._text.device
        first = torch.tensor([start], device=device)
        step = chain_rows(self._text[:, start:stop], first, self._sequence, tail)
        return self._target.verify(step, no_moves(1, tail, device)).logits.float()
