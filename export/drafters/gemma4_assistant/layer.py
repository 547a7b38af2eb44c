"""A decoder layer of an assistant: Gemma 4's, with queries alone."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.rope import apply_rotary
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.gemma4.config import Gemma4Config
from eagle_aot.targets.gemma4.model import META, Gemma4Layer


@dataclass(frozen=True, slots=True)
class ReadContext(Context):
    """And the cache of the target's that all layers of the kind read."""

    cache: KVCache


class ReadingAttention(nn.Module):
    """Queries over keys and values that the target has stored; scores are not scaled."""

    def __init__(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__()
        self.head_dim, _ = config.dims(layer)
        width = config.num_attention_heads * self.head_dim
        self.q_proj = linear(config.hidden_size, width, dtype)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype)
        self.o_proj = linear(width, config.hidden_size, dtype)

    def forward(self, x: Tensor, context: ReadContext) -> Tensor:
        """`x` [1, T, H] -> [1, T, H]; nothing is stored."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        q = apply_rotary(q, context.rotary)
        return self.o_proj(context.view.attend(context.cache, q, 1.0).flatten(2))


class AssistantLayer(Gemma4Layer):
    """Norms, MLP and scalar are those of the target's layers."""

    def attention(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> nn.Module:
        return ReadingAttention(config, layer, dtype, caches)


def linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    """Without a bias, and without storage yet."""
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device=META)
