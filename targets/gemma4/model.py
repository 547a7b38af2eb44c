"""The Gemma 4 text decoder, written to be exported.

Math as in transformers 5.17 `modeling_gemma4.py`: four norms per layer around attention and MLP,
q/k/v norms per head, keys that double as values on full layers, no attention scaling, a scalar on
each layer's whole stream, and a soft cap on the logits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.cached_attention import CachedAttention
from eagle_aot.targets.decoder.gated_mlp import GatedMLP
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.residual import ResidualLayer, join
from eagle_aot.targets.decoder.rope import RotaryEmbedding
from eagle_aot.targets.decoder.tap_decoder import Context, TapDecoder
from eagle_aot.targets.gemma4.config import FULL, SLIDING, Gemma4Config

META = torch.device("meta")  # linears and the embedding get their storage from the loader


class Gemma4Attention(CachedAttention):
    """Grouped-query attention with q, k and v norms; `v_proj` is None where keys are the values.

    They are so before the norms only: keys get a weight and are rotated, values are not. So both
    are stored, and both must be read.
    """

    scale = 1.0

    def __init__(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.head_dim, kv_heads = config.dims(layer)
        sliding = config.layer_types[layer] == SLIDING
        q_width, kv_width = self.heads * self.head_dim, kv_heads * self.head_dim
        self.q_proj = _linear(config.hidden_size, q_width, dtype)
        self.k_proj = _linear(config.hidden_size, kv_width, dtype)
        has_v_proj = sliding or not config.attention_k_eq_v
        self.v_proj = _linear(config.hidden_size, kv_width, dtype) if has_v_proj else None
        self.o_proj = _linear(q_width, config.hidden_size, dtype)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype)
        self.v_norm = RMSNorm(None, config.rms_norm_eps)
        window = config.sliding_window if sliding else 0
        self.kv_cache = caches.cache(kv_heads, self.head_dim, window)


class Gemma4Layer(ResidualLayer):
    """One decoder layer: each branch is normalised before and after, the result scaled."""

    layer_scalar: Tensor
    branch_ends = ("self_attn.o_proj", "mlp.down_proj")

    def __init__(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.kind = config.layer_types[layer]
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.self_attn = self.attention(config, layer, dtype, caches)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps, dtype)
        inner = config.intermediate_size
        self.mlp = GatedMLP(
            gate_proj=_linear(hidden, inner, dtype),
            up_proj=_linear(hidden, inner, dtype),
            down_proj=_linear(inner, hidden, dtype),
            activation="gelu_tanh",
        )
        self.post_feedforward_layernorm = RMSNorm(hidden, eps, dtype)
        self.register_buffer("layer_scalar", torch.ones(1, dtype=dtype))

    def attention(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> nn.Module:
        """Its attention: the target's own, which a drafter's layers have not."""
        return Gemma4Attention(config, layer, dtype, caches)

    def join_packed(self) -> None:
        """The scale gets a second dimension: one alone, of few numbers, Inductor writes into the
        program's text, and has a kernel launched that makes it a tensor again."""
        super().join_packed()
        if self.layer_scalar.ndim == 1:  # not packed before
            self.layer_scalar = self.layer_scalar.view(1, 1)

    def forward(
        self, stream: Tensor, normed: Tensor, context: Context, next_norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        attended = self.self_attn(normed, context)
        norms = self.pre_feedforward_layernorm, self.post_attention_layernorm
        stream, normed = join(attended, stream, *norms)
        mixed = self.mlp(normed)
        norms = next_norm, self.post_feedforward_layernorm
        return join(mixed, stream, *norms, self.layer_scalar)


class Gemma4Target(TapDecoder):
    """A Gemma 4 text decoder with caches as `caches` says."""

    embed_scale: Tensor
    never: Tensor | None

    def __init__(self, config: Gemma4Config, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(caches.max_seq_len, config.ring_window, caches.sequences)
        self.config = config
        self.dtype = dtype
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_hidden_layers = config.num_hidden_layers
        self.sliding_window = config.ring_window
        self.embed_tokens = nn.Embedding(
            config.vocab_size, config.hidden_size, dtype=dtype, device=META
        )
        self.layers = nn.ModuleList(
            Gemma4Layer(config, layer, dtype, caches) for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        tied = config.tie_word_embeddings
        head = None if tied else _linear(config.hidden_size, config.vocab_size, dtype)
        self.register_module("lm_head", head)
        # transformers rounds the scale to the embedding's dtype; so must we, in bfloat16.
        scale = torch.full((1,), config.hidden_size**0.5, dtype=dtype)
        self.register_buffer("embed_scale", scale, persistent=False)
        self.register_buffer("never", None, persistent=False)
        self.rotary = nn.ModuleDict(
            {
                SLIDING: config.sliding_rope.embedding(config.head_dim),
                FULL: config.full_rope.embedding(config.global_head_dim),
            }
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens) * self.embed_scale

    def rotary_of(self, kind: str) -> RotaryEmbedding:
        embedding = self.rotary[kind]
        assert isinstance(embedding, RotaryEmbedding)
        return embedding

    def suppress(self, tokens: Sequence[int]) -> None:
        """Let none of these ids be likely at all from now on."""
        never = torch.zeros(self.vocab_size)
        never[list(tokens)] = float("-inf")
        self.register_buffer("never", never, persistent=False)

    def logits(self, normed: Tensor) -> Tensor:
        logits = cast(self.products(normed), torch.float32)
        if (cap := self.config.final_logit_softcapping) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits if self.never is None else logits + self.never


def _linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device=META)
