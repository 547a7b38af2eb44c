"""A DSpark head: DFlash's layers, a bias for each draft by the draft before it, and a confidence.

The math is that of DeepSpec's `modeling/dspark` and of speculators' `models/dspark`, which agree.
The layers run once for a block; the Markov head then adds to the logits of each draft what the
token before it makes likelier. Shapes as in DFlash: B sequences, T rows of each, H the width, r the
Markov head's rank, V the target's vocabulary, Vd the head's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_aot.artifact import DSPARK
from eagle_aot.export.drafters.dflash.model import DFlashConfig, DFlashDraft
from eagle_aot.export.drafters.head_tensors import empty_linear
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.norms import cast
from eagle_aot.targets.step import Step, one_row_of_rows, rows_of_sequences

LINES = 2
"""Lines of the rows of a step that a batch may have for each text."""

VANILLA, GATED = "vanilla", "gated"
"""Markov heads that are read: the embedding of the token before as it is, or gated by the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DSparkConfig(DFlashConfig):
    """What a DSpark head has in addition.

    With `sample_from_anchor` a row predicts the token after its own, so that the bonus token's row
    drafts as well. `confidence_rank` is the part of the confidence head's input that comes from the
    token before: `markov_rank`, or 0; None for a head without confidence.
    """

    markov_rank: int
    markov_head_type: str
    sample_from_anchor: bool
    confidence_rank: int | None

    @property
    def first_draft(self) -> int:
        return 0 if self.sample_from_anchor else 1


class MarkovHead(nn.Module):
    """How much likelier each draft is after a token. Tokens are the target's, drafts the head's."""

    def __init__(self, config: DSparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        rank, hidden = config.markov_rank, config.hidden_size
        self.markov_w1 = nn.Embedding(config.vocab_size, rank, dtype=dtype, device="meta")
        self.markov_w2 = empty_linear(rank, config.draft_vocab_size, dtype)
        self.gate_proj: nn.Linear | None = None
        if config.markov_head_type == GATED:
            self.gate_proj = nn.Linear(hidden + rank, rank, dtype=dtype, device="meta")

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Return the bias float32 [1, N, Vd] after tokens with rows `embedded` [1, N, r] of
        `markov_w1`, for drafts of rows with `states` [1, N, H]."""
        if self.gate_proj is not None:
            embedded = embedded * torch.sigmoid(self.gate_proj(torch.cat((states, embedded), -1)))
        return cast(self.markov_w2(embedded), torch.float32)


class Projection(nn.Module):
    """A linear with a single output, computed in float32: no product of matrices, so that no
    quantiser packs it."""

    def __init__(self, inputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, inputs, dtype=dtype), False)
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype), False)

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        """Project `x` [1, B * T, inputs], whose first part was `like` [B, T, ...]; float32
        [B, T, 1]. The shape is restored before the sum: torch.export does not see later that it
        fits."""
        products = cast(x, torch.float32) * cast(self.weight[0], torch.float32)
        total = rows_of_sequences(products, like).sum(dim=-1, keepdim=True)
        return total + cast(self.bias, torch.float32)


class ConfidenceHead(nn.Module):
    """How likely it is that a draft is accepted if all drafts before it were."""

    def __init__(self, inputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.proj = Projection(inputs, dtype)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        """Return the logits float32 [B, T, 1] of that probability, for `x` [1, B * T, inputs] that
        begin with `states` [B, T, H]."""
        return self.proj(x, states)


class DSparkDraft(DFlashDraft):
    """A head as `DFlashDraft`, with a Markov head and usually a confidence head."""

    kind = DSPARK
    config: DSparkConfig

    def __init__(self, config: DSparkConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        self.markov_head = MarkovHead(config, dtype)
        self.confidence_head: ConfidenceHead | None = None
        self.lines = 1 if config.confidence_rank is None else LINES
        if config.confidence_rank is not None:
            width = config.hidden_size + config.confidence_rank
            self.confidence_head = ConfidenceHead(width, dtype)

    def run_block(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Run blocks as `run` does; also return the rows' states [B, T, H], which `bias` reads. Row
        i predicts the token after its own if the head samples from the anchor."""
        states = self._states(tokens, step)
        logits = self._logits(states)
        return rows_of_sequences(logits, tokens), rows_of_sequences(states, tokens)

    def bias(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, ...]:
        """Return what is added to the logits of each draft after each of `tokens` int64 [B, T], for
        rows with `states` [B, T, H]: float32 [B, T, Vd].

        A head with confidence also returns the logits of each draft's probability to be accepted if
        those before it were, whichever token it is: float32 [B, T, 1].
        """
        embedded = self.markov_head.markov_w1(one_row_of_rows(tokens))
        rows = one_row_of_rows(states)
        bias = self.markov_head(embedded, rows)
        if self.config.logit_scale != 1.0:
            bias = bias * self.config.logit_scale
        bias = rows_of_sequences(bias, tokens)
        if self.confidence_head is None:
            return (bias,)
        read = torch.cat((rows, embedded), -1) if self.config.confidence_rank else rows
        return bias, self.confidence_head(read, states)
