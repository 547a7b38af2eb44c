"""A decoder layer whose keys and values of a text are made of the target's features."""

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.cache_views import StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.rope import apply_rotary
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormAttention, PreNormLayer
from eagle_aot.targets.step import Step


class DFlashAttention(PreNormAttention):
    """Keys and values are projected without queries, so the three stay apart."""

    def fuse_linears(self, multiprocessors: int) -> None:
        """Nothing: of one packed weight, a text would have to pay for queries too."""

    def store(self, features: Tensor, context: Context) -> None:
        """Keys and values of a text's features [1, T, H], which no norm of the layer touches."""
        assert self.k_proj is not None and self.v_proj is not None
        k, v = (
            linear(features).unflatten(-1, (-1, self.head_dim))
            for linear in (self.k_proj, self.v_proj)
        )
        k = apply_rotary(self.k_norm(k), context.rotary)
        context.view.store(self.kv_cache, k, v)


class DFlashLayer(PreNormLayer):
    """Qwen3's, but for where keys and values of a text come from."""

    def attention(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> DFlashAttention:
        return DFlashAttention(config, kind, dtype, caches)

    def store(self, features: Tensor, context: Context) -> None:
        """As its attention does."""
        assert isinstance(self.self_attn, DFlashAttention)
        self.self_attn.store(features, context)


class BlockView(StepView):
    """Rows that are stored each at its own position, and all see what the last of them sees.

    So a block sees itself both ways, by the operator that chains and trees are attended with: the
    last row's tail holds all of the block. A sliding window is the last row's too, whose oldest
    keys the other rows miss.
    """

    def __init__(self, rows: Step, cache: KVCache) -> None:
        """Of a step of at most `TAIL` rows of each sequence, consecutive ones."""
        whole = Step(
            rows.positions[:, -1:].expand_as(rows.positions),
            rows.sequences,
            rows.tail[:, -1:].expand_as(rows.tail),
            splits_keys=rows.splits_keys,
        )
        super().__init__(whole, cache)
        self._rows = StepView(rows, cache)

    @property
    def row_slots(self) -> Tensor:
        """Where each row is stored, int64 [B * T]."""
        return self._rows.row_slots


def linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    """Without a bias, and without storage yet."""
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device="meta")
