"""A decoder layer of an assistant: Gemma 4's, with queries alone."""

from dataclasses import dataclass

from torch import Tensor, nn

from eagle_aot.targets.decoder.kv_cache import CacheSizes, KVCache
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

    def __init__(self, config: Gemma4Config, layer: int, caches: CacheSizes) -> None:
        super().__init__()
        self.head_dim, _ = config.dims(layer)
        width, dtype = config.num_attention_heads * self.head_dim, caches.dtype
        self.q_proj = linear(config.hidden_size, width, caches)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype)
        self.o_proj = linear(width, config.hidden_size, caches)

    def forward(self, x: Tensor, context: ReadContext) -> Tensor:
        """`x` [1, T, H] -> [1, T, H]; nothing is stored."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        q = apply_rotary(q, context.rotary)
        return self.o_proj(context.view.attend(context.cache, q, 1.0).flatten(2))


class AssistantLayer(Gemma4Layer):
    """Norms, MLP and scalar are those of the target's layers."""

    def attention(self, config: Gemma4Config, layer: int, caches: CacheSizes) -> nn.Module:
        return ReadingAttention(config, layer, caches)


def linear(inputs: int, outputs: int, caches: CacheSizes) -> nn.Linear:
    """Without a bias, and without storage yet."""
    return nn.Linear(inputs, outputs, bias=False, dtype=caches.dtype, device=META)
