"""The decoder of Llama and its relatives, written to be exported, and how its checkpoints are read.

Two norms per layer, each before its branch; grouped-query attention; a SiLU-gated MLP; biases where
the config names them. Modules have the names of Hugging Face checkpoints.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.cached_attention import CachedAttention
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
from eagle_aot.targets.pre_norm.config import SLIDING, PreNormConfig

META = torch.device("meta")  # linears and the embedding get their storage from the loader
PREFIXES = ("model.", "")
"""Tensor name prefixes: a causal language model, and a base model saved without its head."""
COMPUTED = ".rotary_emb.inv_freq"
"""Suffix of tables that old checkpoints store and that are computed here."""


class PreNormAttention(CachedAttention):
    """Grouped-query attention; `q_norm` and `k_norm` are identities in families without them."""

    def __init__(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__()
        self.heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.scale = config.head_dim, config.head_dim**-0.5
        q_width, kv_width = self.heads * self.head_dim, kv_heads * self.head_dim
        hidden, biased = config.hidden_size, config.biased
        self.q_proj = linear(hidden, q_width, dtype, "q_proj" in biased)
        self.k_proj = linear(hidden, kv_width, dtype, "k_proj" in biased)
        self.v_proj = linear(hidden, kv_width, dtype, "v_proj" in biased)
        self.o_proj = linear(q_width, hidden, dtype, "o_proj" in biased)
        self.q_norm, self.k_norm = (self._head_norm(config, dtype) for _ in "qk")
        self.v_norm = nn.Identity()
        window = config.sliding_window if kind == SLIDING else 0
        self.kv_cache = caches.cache(kv_heads, self.head_dim, window)

    def _head_norm(self, config: PreNormConfig, dtype: torch.dtype) -> nn.Module:
        if not config.qk_norm:
            return nn.Identity()
        return RMSNorm(self.head_dim, config.rms_norm_eps, dtype)


class PreNormLayer(ResidualLayer):
    """One decoder layer over the residual stream [1, T, H]."""

    branch_outputs: tuple[str, ...] = ("self_attn.o_proj", "mlp.down_proj")
    self_attn: nn.Module

    def __init__(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__()
        self.kind = kind
        hidden, inner, biased = config.hidden_size, config.intermediate_size, config.biased
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps, dtype)
        self.add_module(self.mixer, self.attention(config, kind, dtype, caches))
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps, dtype)
        self.mlp = GatedMLP(
            gate_proj=linear(hidden, inner, dtype, "gate_proj" in biased),
            up_proj=linear(hidden, inner, dtype, "up_proj" in biased),
            down_proj=linear(inner, hidden, dtype, "down_proj" in biased),
            activation="silu",
        )

    def attention(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> nn.Module:
        """Make the attention of this layer; subclasses may make another, or what replaces it."""
        return PreNormAttention(config, kind, dtype, caches)

    def forward(
        self, stream: Tensor, normed: Tensor, context: Context, next_norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        attended = self.get_submodule(self.mixer)(normed, context)
        stream, normed = add_branch(attended, stream, self.post_attention_layernorm)
        return add_branch(self.mlp(normed), stream, next_norm)


class PreNormDecoder(TapDecoder):
    """A pre-norm decoder from token ids int64 [1, T] to logits float32 [1, T, V].

    Weights and activations have `dtype`, caches follow `caches`.
    """

    def __init__(self, config: PreNormConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
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
        self.layers = nn.ModuleList(
            self.layer_of(kind)(config, kind, dtype, caches) for kind in config.layer_types
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        tied = config.tie_word_embeddings
        head = None if tied else linear(config.hidden_size, config.vocab_size, dtype)
        self.register_module("lm_head", head)
        self.rotary = config.rope.embedding(config.head_dim)

    def layer_of(self, kind: str) -> type[PreNormLayer]:
        """Return the class of the layers of a kind."""
        return PreNormLayer

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens)

    def rotary_of(self, kind: str) -> RotaryEmbedding:
        return self.rotary

    def logits(self, normed: Tensor) -> Tensor:
        return cast(self.output_product(normed), torch.float32)


def linear(inputs: int, outputs: int, dtype: torch.dtype, bias: bool = False) -> nn.Linear:
    """Make a linear without storage."""
    return nn.Linear(inputs, outputs, bias=bias, dtype=dtype, device=META)


Decoder = TypeVar("Decoder", bound=PreNormDecoder)


def load_pre_norm(
    read_config: Callable[[ConfigSection, int], PreNormConfig],
    decoder: type[Decoder],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    caches: CacheSpec,
    prefixes: Sequence[str] = PREFIXES,
    unused: tuple[str, ...] = (),
) -> Decoder:
    """Load the decoder of `checkpoint` on the host; linears are INT4 where the checkpoint is.

    `read_config` takes the config and `max_seq_len`; `decoder` is the class with the modules that
    the checkpoint stores. Names have one of `prefixes`; those that begin with one of `unused` are
    not read.
    """
    config = read_config(checkpoint.config, caches.max_seq_len)
    prefix = name_prefix(checkpoint, prefixes)
    unused += tuple(name for name in checkpoint.names() if name.endswith(COMPUTED))
    if has_own_table(checkpoint):
        config = replace(config, tie_word_embeddings=False)
    if config.tie_word_embeddings:
        unused += duplicate_tables(checkpoint, prefix)
    with torch.device("meta"):
        check_sizes(decoder(config, dtype, caches), checkpoint, prefix)
    target = decoder(config, dtype, caches)
    load_weights(target, checkpoint, prefix, unused, dtype)
    return target.eval()
