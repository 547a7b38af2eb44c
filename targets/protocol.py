"""The interface of a target model."""

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
        """The embedding table [V, H], unscaled."""

    @property
    def lm_head_weight(self) -> Tensor:
        """The output table [V, H]."""

    def set_eagle_tap_layers(self, layers: Sequence[int]) -> None:
        """Set the boundaries whose hidden states `forward_logits_taps` and `run` return."""

    def forward_logits_taps(
        self, tokens: Tensor, input_pos: Tensor, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run consecutive tokens int64 [1, T] of the first sequence at `input_pos` int64 [T].

        Returns logits float32 [1, T, V] and taps [1, T, num_taps * H].
        """

    def run(
        self, tokens: Tensor, rows: Rows, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run `rows` with tokens int64 [B, T] through the caches.

        Returns logits float32 [B, T, V] and taps [B, T, num_taps * H].
        """

    def reset_cache(self) -> None:
        """Zero all caches and start over at position 0."""
