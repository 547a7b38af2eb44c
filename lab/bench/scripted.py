"""Drafts that are accepted as often as a benchmark says."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.engine import Engine

GOLDEN = 0.6180339887498949
"""Its multiples are spread evenly between integers, so that rounds have the required mean."""


class ScriptedDrafts:
    """Replaces what a runner's drafter proposes, in as much time: the first drafts of each chain
    are the text's own tokens, which plain decoding has given, and the others are wrong.

    Rounds emit `tau` tokens on average. Made before a round is recorded.
    """

    def __init__(self, runner: Runner) -> None:
        constants, device = runner.constants, runner.executor.device
        self._propose, self._vocab_size = runner.drafter.propose, constants.vocab_size
        shape = constants.max_batch_size, constants.max_seq_len + constants.tail
        self._texts = torch.zeros(shape, dtype=torch.int64, device=device)
        self._tau = torch.ones((), dtype=torch.float64, device=device)
        self._owners: dict[int, int] = {}
        self._known: Sequence[Sequence[int]] = ()
        setattr(runner.drafter, "propose", self.propose)  # noqa: B010

    def start(self, tau: float, texts: Sequence[Sequence[int]]) -> None:
        """Give `tau` tokens a round to requests with these texts, prompts included."""
        self._tau.fill_(tau)
        self._owners, self._known = {}, texts

    def place(self, engine: Engine, first: int) -> None:
        """Write the texts of requests, numbered from `first` on, that have other sequences than
        before; called before each step."""
        for request in (*engine.prefilling, *engine.running):
            sequence, number = request.sequence, request.request_id
            if sequence is not None and self._owners.get(sequence) != number:
                text = torch.tensor(self._known[number - first])
                self._texts[sequence, : len(text)].copy_(text)
                self._owners[sequence] = number

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return the drafter's chains with other tokens."""
        draft = self._propose(batch, shape)
        steps = arange_cached(1, draft.tokens.shape[1] + 1, batch.position.device)
        last = self._texts.shape[1] - 1
        places = (batch.position.unsqueeze(1) + steps).clamp(0, last)
        right = self._texts[batch.sequences.unsqueeze(1), places]
        correct = torch.floor(self._tau - 1 + batch.position * GOLDEN % 1).unsqueeze(1)
        wrong = (right + 1) % self._vocab_size
        return replace(draft, tokens=torch.where(steps <= correct, right, wrong))
