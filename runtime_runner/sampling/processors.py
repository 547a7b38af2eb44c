"""Logits processors: biases, penalties and cuts before a token is chosen.

All parameters are in tensors, so that one recorded round serves every request. On a GPU kernels do
the same.
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
from eagle_aot.runtime_runner.sampling.token_masks import forbidden_by


@dataclass(frozen=True, slots=True)
class Rows:
    """R rows that choose a token each.

    `sequences` int64 [R] are the rows' sequences, and `positions` int64 [R] those of the tokens
    to be chosen. `paths` int64 [R, P] are the drafts between the last decided token and the row's,
    padded with -1; None without drafts. `bitmask` uint8 [R, W] has the bits of the tokens that each
    may choose, as `Constraint.fill` writes them; None if all may choose any.
    """

    sequences: Tensor
    positions: Tensor
    paths: Tensor | None = None
    bitmask: Tensor | None = None


class Processors:
    """Parameters and token counts by sequence, always in the same tensors.

    Shapes: S sequences, V tokens. `bias` float32 [S, V] is minus infinity for ids that are not
    allowed, `counts` int32 [S, V] counts the generated tokens, `seen` bool [S, V] marks the
    prompt's tokens and `stops` bool [S, V] the stop ids. `least` int64 [S] is the first position at
    which a stop id may be chosen.
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
        """Set the parameters of a new request in a sequence."""
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
        """Count `tokens` int64 [B, P] of `sequences` int64 [B] where `counted` bool [B, P]."""
        indices = sequences.unsqueeze(1) * self._counts.shape[1] + tokens
        self._counts.view(-1).scatter_add_(0, indices.flatten(), counted.int().flatten())

    def processed(self, logits: Tensor, scale: Tensor, rows: Rows) -> Tensor:
        """Return logits float32 [R, V] with minus infinity for every token that may not be chosen.

        They are compared after multiplication with `scale` float32 [R].
        """
        if logits.device.type == "cpu":
            return self.filtered(self.penalised(logits, rows), scale, rows)
        from eagle_aot.triton_kernels.process_logits import cut, penalise

        penalised, extremes = penalise.launch(
            logits,
            rows.sequences,
            rows.positions,
            rows.paths,
            rows.bitmask,
            (self._biased, self._bias),
            (self._penalised, self._penalties),
            (self._counts, self._seen),
            (self._least, self._stops),
        )
        return cut.launch(
            penalised,
            extremes,
            scale,
            rows.sequences,
            self._top_k,
            self._top_p,
            self._min_p,
            SCALE_BITS,
            LOG2E,
            EXP2,
        )

    def penalised(self, logits: Tensor, rows: Rows) -> Tensor:
        """Return logits float32 [R, V] with biases and penalties, without forbidden tokens and
        early stop ids."""
        sequences = rows.sequences
        if rows.bitmask is not None:
            forbidden = forbidden_by(rows.bitmask, logits.shape[1])
            logits = logits.masked_fill(forbidden, -torch.inf)
        if self._biased[sequences].any():
            logits = logits + self._bias[sequences]
        if self._penalised[sequences].any():
            logits = self._with_penalties(logits, rows)
        early = rows.positions < self._least[sequences]
        if early.any():
            logits = logits.masked_fill(early.unsqueeze(1) & self._stops[sequences], -torch.inf)
        return logits

    def _with_penalties(self, logits: Tensor, rows: Rows) -> Tensor:
        """Apply penalties to logits float32 [R, V], also for the drafts on a row's path."""
        counts, penalties = self._counts[rows.sequences], self._penalties[rows.sequences]
        seen = self._seen[rows.sequences] | (counts > 0)
        result = apply_penalties(logits, seen, counts, penalties)
        if rows.paths is None or not rows.paths.shape[1]:
            return result
        drafts = rows.paths.clamp(min=0)
        on_path = (rows.paths.unsqueeze(2) == rows.paths.unsqueeze(1)).sum(dim=2)
        total = counts.gather(1, drafts) + on_path
        all_seen = torch.ones_like(total, dtype=torch.bool)
        penalised = apply_penalties(logits.gather(1, drafts), all_seen, total, penalties)
        # Padding of a path writes to an extra column after the vocabulary.
        column = torch.where(rows.paths < 0, result.shape[1], drafts)
        return torch.nn.functional.pad(result, (0, 1)).scatter(1, column, penalised)[:, :-1]

    def filtered(self, logits: Tensor, scale: Tensor, rows: Rows) -> Tensor:
        """Return logits float32 [R, V] with minus infinity for all that top_k, top_p and min_p cut.

        They are compared after multiplication with `scale` float32 [R].
        """
        values = logits * torch.where(scale > 0, scale, 1.0).unsqueeze(1)
        order, sequences = order_of(values), rows.sequences
        is_kept = torch.ones_like(order, dtype=torch.bool)
        top_k, top_p = self._top_k[sequences], self._top_p[sequences]
        if (cuts_top_k := (top_k < logits.shape[1]) & (scale > 0)).any():
            is_kept &= order >= threshold(order, torch.ones_like(order).long(), top_k, cuts_top_k)
        if (cuts_top_p := (top_p < 1) & (scale > 0)).any():
            weights = torch.where(is_kept, weights_of(values), 0)
            goal = (weights.sum(dim=1).double() * top_p).ceil().long()
            is_kept &= order >= threshold(order, weights, goal, cuts_top_p)
        largest = values.amax(dim=1, keepdim=True)
        is_kept &= values >= largest + self._min_p[sequences].unsqueeze(1)
        return torch.where(is_kept, logits, -torch.inf)


def apply_penalties(logits: Tensor, seen: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
    """Apply `penalties` [R, 3] of repetition, presence and frequency to logits float32 [R, N].

    `seen` bool [R, N] are tokens that the text has, and `counts` int [R, N] how often each was
    generated.
    """
    repetition, presence, frequency = penalties.unsqueeze(2).unbind(1)
    repeated = torch.where(logits < 0, logits * repetition, logits / repetition)
    penalised = torch.where(seen, repeated, logits)
    return penalised - torch.where(counts > 0, presence, 0.0) - frequency * counts
