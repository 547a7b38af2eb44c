"""The Gemma 4 text decoder, written to be exported, and how its checkpoints are read.

Math as in transformers 5.17 `modeling_gemma4.py`: four norms per layer around attention and MLP,
q/k/v norms per head, keys that double as values on full layers, no attention scaling, a scalar on
each layer's whole stream, and a soft cap on the logits; with experts, these in addition to the MLP.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.cached_attention import CachedAttention
from eagle_aot.targets.decoder.experts import (
    ExpertChoice,
    Experts,
    ExpertsConfig,
    RouterLinear,
)
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.layer import GatedMLP, ResidualLayer, add_branch
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.rope import RotaryEmbedding
from eagle_aot.targets.decoder.tap_decoder import Context, TapDecoder
from eagle_aot.targets.decoder.weights import (
    check_sizes,
    duplicate_tables,
    has_own_table,
    load_weights,
    name_prefix,
)
from eagle_aot.targets.gemma4.config import FULL, SLIDING, Gemma4Config

META = torch.device("meta")  # linears and the embedding get their storage from the loader
PREFIXES = ("model.language_model.", "language_model.", "model.", "")
"""Tensor name prefixes: multimodal layout, text layout, and the same of base models and of
ExecuTorch's quantised checkpoints."""
NOT_TEXT = tuple(
    f"{prefix}{part}."
    for prefix in ("model.", "")
    for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")
)


class Gemma4Attention(CachedAttention):
    """Grouped-query attention with q, k and v norms; `v_proj` is None if keys are the values.

    They are the same before the norms only: keys are then scaled by a weight and rotated, values
    are not. So both are stored, and both are read.
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
    """One decoder layer over the residual stream [1, T, H].

    Each branch is normalised before and after, and the result is scaled.
    """

    layer_scalar: Tensor
    branch_outputs: tuple[str, ...] = ("self_attn.o_proj", "mlp.down_proj")

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
        """Make the attention of this layer; subclasses may make another."""
        return Gemma4Attention(config, layer, dtype, caches)

    def fuse_branch_outputs(self) -> None:
        """Also give the scale a second dimension.

        Inductor writes a small one-dimensional constant into the program's text and launches a
        kernel that makes it a tensor again.
        """
        super().fuse_branch_outputs()
        if self.layer_scalar.ndim == 1:  # not packed before
            self.layer_scalar = self.layer_scalar.view(1, 1)

    def forward(
        self, stream: Tensor, normed: Tensor, context: Context, next_norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        stream, normed = add_branch(
            self.self_attn(normed, context),
            stream,
            self.pre_feedforward_layernorm,
            self.post_attention_layernorm,
        )
        return add_branch(
            self.branch(stream, normed),
            stream,
            next_norm,
            self.post_feedforward_layernorm,
            self.layer_scalar,
        )

    def branch(self, stream: Tensor, normed: Tensor) -> Tensor:
        """Return what is added to the stream [1, T, H] after attention, before its norm; `normed`
        is that stream after `pre_feedforward_layernorm`."""
        branch: Tensor = self.mlp(normed)
        return branch


class Gemma4Router(nn.Module):
    """Scores the experts by the residual stream: normalised, scaled by `scale` / sqrt(H)."""

    def __init__(self, config: Gemma4Config, experts: ExpertsConfig, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, count = config.hidden_size, experts.num_experts
        self.choice, self.root = ExpertChoice(experts), hidden**-0.5
        self.norm = RMSNorm(None, config.rms_norm_eps)
        self.proj = RouterLinear(hidden, count, bias=False, dtype=dtype, device=META)
        self.scale, self.per_expert_scale = (
            nn.Parameter(torch.ones(size, dtype=dtype), requires_grad=False)
            for size in (hidden, count)
        )

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of `rows` [T, H]: weights float32 [T, k] and ids int64 [T, k]."""
        scores = self.proj(self.norm(rows) * self.scale * self.root)
        choice: tuple[Tensor, Tensor] = self.choice(scores, self.per_expert_scale)
        return choice


class Gemma4ExpertsLayer(Gemma4Layer):
    """A layer with experts, which read the stream that its MLP reads; each has norms of its own."""

    branch_outputs = ("self_attn.o_proj",)  # others are normalised before they are added

    def __init__(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__(config, layer, dtype, caches)
        assert config.experts is not None
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.router = Gemma4Router(config, config.experts, dtype)
        self.experts = Experts(config.experts, hidden, "gelu_tanh", dtype)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps, dtype)
        self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps, dtype)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps, dtype)

    def branch(self, stream: Tensor, normed: Tensor) -> Tensor:
        rows = stream.squeeze(0)
        mixed = self.experts(self.pre_feedforward_layernorm_2(rows), *self.router(rows))
        dense = self.post_feedforward_layernorm_1(self.mlp(normed))
        return dense + self.post_feedforward_layernorm_2(mixed).unsqueeze(0)


class Gemma4Target(TapDecoder):
    """A Gemma 4 text decoder from token ids int64 [1, T] to logits float32 [1, T, V].

    Weights and activations have `dtype`, caches follow `caches`.
    """

    embed_scale: Tensor
    never: Tensor | None

    def __init__(self, config: Gemma4Config, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(caches, config.ring_window)
        self.config = config
        self.dtype = dtype
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_hidden_layers = config.num_hidden_layers
        self.sliding_window = config.ring_window
        self.embed_tokens = nn.Embedding(
            config.vocab_size, config.hidden_size, dtype=dtype, device=META
        )
        layer_kind = Gemma4Layer if config.experts is None else Gemma4ExpertsLayer
        self.layers = nn.ModuleList(
            layer_kind(config, layer, dtype, caches) for layer in range(config.num_hidden_layers)
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

    def suppress_tokens(self, tokens: Sequence[int]) -> None:
        """Set the logits of these token ids to minus infinity from now on."""
        never = torch.zeros(self.vocab_size)
        never[list(tokens)] = float("-inf")
        self.register_buffer("never", never, persistent=False)

    def logits(self, normed: Tensor) -> Tensor:
        logits = cast(self.output_product(normed), torch.float32)
        if (cap := self.config.final_logit_softcapping) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits if self.never is None else logits + self.never


def _linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device=META)


def load_gemma4(checkpoint: Checkpoint, dtype: torch.dtype, caches: CacheSpec) -> Gemma4Target:
    """Load the decoder of `checkpoint` on the host; linears are INT4 where the checkpoint is."""
    config = Gemma4Config.from_hf(checkpoint.config)
    prefix = name_prefix(checkpoint, PREFIXES)
    unused = NOT_TEXT
    if has_own_table(checkpoint):
        config = replace(config, tie_word_embeddings=False)
    if config.tie_word_embeddings:
        unused += duplicate_tables(checkpoint, prefix)
    with torch.device("meta"):
        check_sizes(Gemma4Target(config, dtype, caches), checkpoint, prefix)
    target = Gemma4Target(config, dtype, caches)
    load_weights(target, checkpoint, prefix, unused, dtype)
    return target.eval()
