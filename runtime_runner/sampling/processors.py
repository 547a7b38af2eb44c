"""What changes logits before a choice, in tensors: one recorded round serves all parameters.

A GPU does the same with kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import NEUTRAL, SamplingParams
from eagle_aot.runtime_runner.sampling.thresholds import (
    EXP2,
    LOG2E,
    SCALE_BITS,
    order_of,
    threshold,
    weights_of,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Where tokens are chosen, R in all: `sequences` int64 [R], whose caches they belong to;
    `positions` int64 [R] of the tokens to be chosen; `paths` int64 [R, P], drafts that a row's text
    has behind the last token that is decided, -1 where there is none; None for no drafts."""

    sequences: Tensor
    positions: Tensor
    paths: Tensor | None = None


class Processors:
    """Parameters and counts of all sequences, by their caches, in the same tensors for good.

    Shapes: S sequences, V tokens. `bias` float32 [S, V] is minus infinity for what is not allowed;
    `counts` int32 [S, V] are of generated tokens, and `seen` bool [S, V] tells the prompt's.
    """

    def __init__(self, sequences: int, vocab: int, device: torch.device) -> None:
        self._bias = torch.zeros(sequences, vocab, device=device)
        self._biased = torch.zeros(sequences, dtype=torch.bool, device=device)
        self._penalised = torch.zeros_like(self._biased)
        self._counts = torch.zeros(sequences, vocab, dtype=torch.int32, device=device)
        self._seen = torch.zeros(sequences, vocab, dtype=torch.bool, device=device)
        self._stops = torch.zeros(sequences, vocab, dtype=torch.bool, device=device)
        self._least = torch.zeros(sequences, dtype=torch.int64, device=device)
        self._penalties = torch.tensor([NEUTRAL], device=device).repeat(sequences, 1)
        self._top_k = torch.full((sequences,), vocab, dtype=torch.int64, device=device)
        self._top_p = torch.ones(sequences, dtype=torch.float64, device=device)
        self._min_p = torch.full((sequences,), -torch.inf, device=device)

    def set(
        self,
        sequence: int,
        sampling: SamplingParams,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
    ) -> None:
        """The text of a sequence is a new one."""
        self._biased[sequence] = bool(sampling.logit_bias) or sampling.allowed_ids is not None
        self._bias[sequence] = 0.0
        if sampling.allowed_ids is not None:
            self._bias[sequence] = -torch.inf
            self._bias[sequence, list(sampling.allowed_ids)] = 0.0
        for token, bias in sampling.logit_bias.items():
            self._bias[sequence, token] += bias
        self._counts[sequence] = 0
        self._seen[sequence] = False
        self._seen[sequence, list(prompt)] = True
        self._stops[sequence] = False
        self._stops[sequence, list(stop_ids)] = True
        self._least[sequence] = len(prompt) + sampling.min_tokens
        self._penalised[sequence] = sampling.penalties != NEUTRAL
        self._penalties[sequence] = torch.tensor(sampling.penalties)
        vocab = self._bias.shape[1]
        self._top_k[sequence] = min(sampling.top_k or vocab, vocab)
        self._top_p[sequence] = sampling.top_p
        self._min_p[sequence] = torch.tensor(sampling.min_p).log()

    def count(self, sequences: Tensor, tokens: Tensor, counted: Tensor) -> None:
        """Tokens int64 [B, P] of sequences int64 [B] are decided, where `counted` bool [B, P]."""
        places = sequences.unsqueeze(1) * self._counts.shape[1] + tokens
        self._counts.view(-1).scatter_add_(0, places.flatten(), counted.int().flatten())

    def processed(self, logits: Tensor, scale: Tensor, rows: Rows) -> Tensor:
        """Logits float32 [R, V], to be multiplied with scale float32 [R], of what may be chosen:
        minus infinity for all else."""
        if logits.device.type == "cpu":
            return self.filtered(self.penalised(logits, rows), scale, rows)
        from eagle_aot.triton_kernels.process_logits import cut, penalise

        penalised, extremes = penalise.launch(
            *(logits, rows.sequences, rows.positions, rows.paths),
            (self._biased, self._bias),
            (self._penalised, self._penalties),
            (self._counts, self._seen),
            (self._least, self._stops),
        )
        bounds = self._top_k, self._top_p, self._min_p
        weighing = SCALE_BITS, LOG2E, EXP2
        return cut.launch(penalised, extremes, scale, rows.sequences, *bounds, *weighing)

    def penalised(self, logits: Tensor, rows: Rows) -> Tensor:
        """Of logits float32 [R, V]: with biases and penalties, minus infinity for what may not be
        chosen."""
        at = rows.sequences
        if self._biased[at].any():
            logits = logits + self._bias[at]
        if self._penalised[at].any():
            logits = self._less(logits, rows)
        early = rows.positions < self._least[at]
        if early.any():
            logits = logits.masked_fill(early.unsqueeze(1) & self._stops[at], -torch.inf)
        return logits

    def _less(self, biased: Tensor, rows: Rows) -> Tensor:
        """With penalties, also for the drafts on a row's path."""
        at = rows.sequences
        counts, penalties = self._counts[at], self._penalties[at]
        found = less(biased, self._seen[at] | (counts > 0), counts, penalties)
        if rows.paths is not None and rows.paths.shape[1]:
            known = rows.paths.clamp(min=0)
            more = (rows.paths.unsqueeze(2) == rows.paths.unsqueeze(1)).sum(dim=2)
            total = counts.gather(1, known) + more
            here = less(biased.gather(1, known), torch.ones_like(total > 0), total, penalties)
            # What is no draft writes to a column of its own, behind the others.
            column = torch.where(rows.paths < 0, found.shape[1], known)
            wide = torch.nn.functional.pad(found, (0, 1))
            found = wide.scatter(1, column, here)[:, :-1]
        return found

    def filtered(self, logits: Tensor, scale: Tensor, rows: Rows) -> Tensor:
        """Of logits float32 [R, V], to be multiplied with scale float32 [R]: minus infinity for all
        but the largest."""
        values = logits * torch.where(scale > 0, scale, 1.0).unsqueeze(1)
        order, at = order_of(values), rows.sequences
        kept = torch.ones_like(order, dtype=torch.bool)
        top_k, top_p = self._top_k[at], self._top_p[at]
        if (few := (top_k < logits.shape[1]) & (scale > 0)).any():
            kept &= order >= threshold(order, torch.ones_like(order).long(), top_k, few)
        if (likely := (top_p < 1) & (scale > 0)).any():
            weights = torch.where(kept, weights_of(values), 0)
            goal = (weights.sum(dim=1).double() * top_p).ceil().long()
            kept &= order >= threshold(order, weights, goal, likely)
        largest = values.amax(dim=1, keepdim=True)
        kept &= values >= largest + self._min_p[at].unsqueeze(1)
        return torch.where(kept, logits, -torch.inf)


def less(logits: Tensor, seen: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
    """Logits float32 [R, N] with penalties [R, 3] of repetition, presence and frequency, for tokens
    that were `seen` bool and generated `counts` times."""
    repetition, presence, frequency = penalties.unsqueeze(2).unbind(1)
    repeated = torch.where(logits < 0, logits * repetition, logits / repetition)
    found = torch.where(seen, repeated, logits)
    return found - torch.where(counts > 0, presence, 0.0) - frequency * counts
