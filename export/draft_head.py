"""The EAGLE-3 draft head: one decoder layer over (next token's embedding, feature) pairs.

Slot j holds the embedding of token j + 1 and the feature of position j, and predicts token j + 2.
A feature is either *fused* (`fc` of the target's tapped hidden states) or *recurrent* (the head's
own output for the slot before). Math as in SafeAILab/EAGLE `cnets.py`, on which vLLM, SGLang and
speculators agree. Shapes: B batch, T slots, H draft hidden, V target vocabulary, Vd draft
vocabulary.
"""

import torch
from torch import Tensor, nn

from eagle_aot.artifact import VERIFY_SLACK
from eagle_aot.errors import SettingError
from eagle_aot.export.draft_config import DraftConfig
from eagle_aot.targets.decoder.attention import attend
from eagle_aot.targets.decoder.gated_mlp import GatedMLP
from eagle_aot.targets.decoder.kv_cache import FlatKVCache
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.positions import PositionGuard
from eagle_aot.targets.decoder.rope import RotaryEmbedding, apply_rotary, default_inv_freq

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""What checkpoints call an activation, and what `GatedMLP` does."""


class DraftAttention(nn.Module):
    """Projections of the fused layer: q, k and v read [embedding, feature], 2H wide."""

    def __init__(self, config: DraftConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width, bias = 2 * config.hidden_size, config.attention_bias
        q_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(width, q_width, bias=bias, dtype=dtype)
        self.k_proj = nn.Linear(width, kv_width, bias=bias, dtype=dtype)
        self.v_proj = nn.Linear(width, kv_width, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(q_width, config.hidden_size, bias=bias, dtype=dtype)
        self.rotary = RotaryEmbedding(default_inv_freq(config.head_dim, config.rope_theta))

    def project(self, x: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`x` [B, T, 2H] -> q [B, heads, T, D], k and v [B, kv_heads, T, D]; q and k rotated."""
        rotary = self.rotary(input_pos)
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def merge(self, attended: Tensor) -> Tensor:
        """`attended` [B, heads, T, D] -> [B, T, H]."""
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class DraftLayer(nn.Module):
    """The fused decoder layer, in two halves around the attention itself.

    The halves take any batch and any attention pattern, which is what training needs; inference
    puts a cache between them (`Eagle3Draft.forward_cached`).
    """

    def __init__(self, config: DraftConfig, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        self.self_attn = DraftAttention(config, dtype)
        inner, bias = config.intermediate_size, config.mlp_bias
        self.mlp = GatedMLP(
            gate_proj=nn.Linear(hidden, inner, bias=bias, dtype=dtype),
            up_proj=nn.Linear(hidden, inner, bias=bias, dtype=dtype),
            down_proj=nn.Linear(inner, hidden, bias=bias, dtype=dtype),
            activation=ACTIVATIONS[config.hidden_act],
        )

    def project(
        self, embedding: Tensor, feature: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`embedding`, `feature` [B, T, H] at `input_pos` int64 [T] -> (residual, q, k, v)."""
        normed = self.hidden_norm(feature)
        residual = normed if self.norm_before_residual else feature
        paired = torch.cat((self.input_layernorm(embedding), normed), dim=-1)
        return residual, *self.self_attn.project(paired, input_pos)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """`residual` [B, T, H], `attended` [B, heads, T, D] -> the layer's output [B, T, H]."""
        stream = residual + self.self_attn.merge(attended)
        return stream + self.mlp(self.post_attention_layernorm(stream))


class Eagle3Draft(nn.Module):
    """An EAGLE-3 head with its own KV cache for `max_seq_len` positions.

    `target_ids` int64 [Vd] is the target id of every draft id (absolute, not offsets).
    `embed_tokens` and `lm_head` may be filled from the target by the loader; until then a head
    whose checkpoint has no embedding refuses to embed (`has_embedding`).
    """

    target_ids: Tensor

    def __init__(
        self, config: DraftConfig, max_seq_len: int = 4096, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config = config
        self.has_embedding = True
        hidden, eps = config.hidden_size, config.rms_norm_eps
        taps_width = config.num_taps * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden, dtype=dtype)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(taps_width, eps, dtype)
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, eps, dtype) for _ in range(config.num_taps))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(taps_width, hidden, bias=config.fc_bias, dtype=dtype)
        self.layers = nn.ModuleList([DraftLayer(config, dtype)])
        self.norm = RMSNorm(hidden, eps, dtype)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False, dtype=dtype)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size))
        slots = max_seq_len + VERIFY_SLACK
        self.kv_cache = FlatKVCache(config.num_kv_heads, slots, config.head_dim, dtype)
        self.positions = PositionGuard(slots)

    def fuse(self, taps: Tensor) -> Tensor:
        """Concatenated taps [B, T, num_taps * Ht], lowest boundary first -> feature [B, T, H]."""
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        if self.config.fc_norm:
            width = self.config.target_hidden_size
            parts = [
                norm(taps[..., i * width : (i + 1) * width]) for i, norm in enumerate(self.fc_norm)
            ]
            taps = torch.cat(parts, dim=-1)
        return self.fc(taps)

    def embed(self, tokens: Tensor) -> Tensor:
        """Target token ids int64 [B, T] -> [B, T, H]."""
        if not self.has_embedding:
            raise SettingError(
                "this head has no embedding of its own: load it with its target "
                "(load_draft(path, target=...))"
            )
        return self.embed_tokens(tokens)

    def logits(self, recurrent: Tensor) -> Tensor:
        """Recurrent feature [B, T, H] -> logits over the draft vocabulary, float32 [B, T, Vd]."""
        normed = recurrent if self.config.norm_output else self.norm(recurrent)
        return cast(self.lm_head(normed), torch.float32)

    def forward_cached(
        self, embedding: Tensor, feature: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run T slots of one sequence through the cache.

        embedding, feature [1, T, H]; input_pos int64 [T], counting up by one from at most the
        number of filled slots. Returns (logits float32 [1, T, Vd], recurrent feature [1, T, H]).
        Raises SettingError on a batch or on positions that leave a gap (eager only).
        """
        self.positions.advance(feature, input_pos)
        layer = self.layers[0]
        assert isinstance(layer, DraftLayer)
        residual, q, k, v = layer.project(embedding, feature, input_pos)
        keys, values = self.kv_cache.update(k, v, input_pos)
        mask = self.kv_cache.mask(input_pos)
        attended = attend(q, keys, values, mask, scale=self.config.head_dim**-0.5)
        output = layer.finish(residual, attended)
        recurrent = self.norm(output) if self.config.norm_output else output
        return self.logits(recurrent), recurrent

    def draft_to_target(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary ids -> target ids, same shape, int64."""
        return self.target_ids[draft_ids]

    def reset_cache(self) -> None:
        """Start a new sequence."""
        self.kv_cache.reset()
        self.positions.reset()
