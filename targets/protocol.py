"""What the rest of the toolchain asks of a target."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.targets.step import Rows


@runtime_checkable
class TapTarget(Protocol):
    """A causal language model with caches for several sequences, whose hidden states can be tapped.

    Implementations are `nn.Module`s, so that they can be exported. `dtype` is that of weights and
    activations; KV caches may have another. `sliding_window` is 0 for a model without sliding
    layers.
    """

    dtype: torch.dtype
    max_seq_len: int
    sequences: int
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    sliding_window: int

    @property
    def embed_weight(self) -> Tensor:
        """The input table [V, H], unscaled."""

    @property
    def lm_head_weight(self) -> Tensor:
        """The output table [V, H]."""

    def set_eagle_tap_layers(self, layers: Sequence[int]) -> None:
        """Choose the boundaries whose hidden states `forward_logits_taps` returns."""

    def forward_logits_taps(
        self, tokens: Tensor, input_pos: Tensor, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run one chunk through the cache: logits float32 [1, T, V], taps [1, T, n_taps * H]."""

    def run(
        self, tokens: Tensor, rows: Rows, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run rows through the caches: logits float32 [B, T, V], taps [B, T, n_taps * H]."""

    def reset_cache(self) -> None:
        """Forget all sequences."""
