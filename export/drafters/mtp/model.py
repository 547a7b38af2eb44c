"""The MTP layer of a target: a decoder layer of its kind over (next token, state) pairs.

Slot j has the embedding of token j + 1 and the target's state of position j, after its final norm,
and predicts token j + 2. A drafted slot has the layer's own output for the slot before, after its
final norm, in place of the target's state. Embedding and output table are the target's. Math as in
vLLM's `qwen3_5_mtp.py`. Shapes: H the target's width, V its vocabulary.
"""

import torch
from torch import Tensor, nn

from eagle_aot.artifact import MTP
from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.target_facts import check_target_sizes
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.cache_views import View, view_of
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import FULL, PreNormConfig
from eagle_aot.targets.pre_norm.model import (
    PreNormAttention,
    PreNormDecoder,
    PreNormLayer,
    linear,
)
from eagle_aot.targets.qwen3_5.model import rotate_first
from eagle_aot.targets.step import PromptChunk, Rows, Step, one_row_of_rows, rows_of_sequences


class MtpModule(nn.Module):
    """What a checkpoint has under `mtp.`: modules have its names.

    `fc` reads the embedding first. There is one layer, which attends to all slots.
    """

    def __init__(
        self,
        config: PreNormConfig,
        layer: type[PreNormLayer],
        dtype: torch.dtype,
        caches: CacheSpec,
    ) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = RMSNorm(hidden, eps, dtype)
        self.pre_fc_norm_hidden = RMSNorm(hidden, eps, dtype)
        self.fc = linear(2 * hidden, hidden, dtype)
        self.layers = nn.ModuleList([layer(config, FULL, dtype, caches)])
        self.norm = RMSNorm(hidden, eps, dtype)

    @property
    def layer(self) -> PreNormLayer:
        """The only layer."""
        (layer,) = self.layers
        assert isinstance(layer, PreNormLayer)
        return layer

    def stream(self, embedding: Tensor, states: Tensor) -> Tensor:
        """Join embedding and states [1, T, H] of slots to the input of the layer, same shape."""
        halves = self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(states)
        return self.fc(torch.cat(halves, dim=-1))


class MtpDraft(nn.Module):
    """An MTP layer with a KV cache of its own; `target_norm` is the target's final norm.

    `lm_head` has the target's output table, which `--draft-quant` replaces by a smaller copy; it is
    None if the target's is quantised already, and is used from there.
    """

    kind = MTP
    default_chain_len: int | None = None
    target_ids: Tensor

    def __init__(
        self,
        config: PreNormConfig,
        layer: type[PreNormLayer],
        dtype: torch.dtype,
        caches: CacheSpec,
    ) -> None:
        """`config` is the geometry of the target whose checkpoint has the layer, and `layer` the
        class of that target's layers that attend to all slots."""
        super().__init__()
        self.config, self.dtype = config, dtype
        self.tap_layers: tuple[int, ...] = (config.num_hidden_layers,)
        self.hidden_size, self.heads = config.hidden_size, config.num_attention_heads
        self.mtp = MtpModule(config, layer, dtype, caches)
        self.target_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.lm_head: nn.Module | None = None
        self.rotary = config.rope.embedding(config.head_dim)
        self.register_buffer("target_ids", torch.arange(config.vocab_size), persistent=False)

    @property
    def kv_cache(self) -> KVCache:
        """The layer's cache."""
        return self.mtp.layer.kv_cache

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless the layer was made for a target of these sizes."""
        if not isinstance(target, PreNormDecoder):
            raise PairingError("the MTP layer was made for a target of another family")
        check_target_sizes(target, self.hidden_size, self.config.vocab_size)
        if self.config.num_hidden_layers != target.num_hidden_layers:
            raise PairingError(
                f"the target has {target.num_hidden_layers} layers, the MTP layer was made for one "
                f"of {self.config.num_hidden_layers}"
            )

    def with_parts_of(self, target: TapTarget) -> "MtpDraft":
        """Return the drafter with the target's final norm and output table; both use one tensor."""
        assert isinstance(target, PreNormDecoder) and target.norm.weight is not None
        self.target_norm.weight, self.target_norm.eps = target.norm.weight, target.norm.eps
        if target.lm_head is None or isinstance(target.lm_head, nn.Linear):
            assert isinstance(target.lm_head_weight, nn.Parameter)
            self.lm_head = linear(self.hidden_size, self.config.vocab_size, self.dtype)
            self.lm_head.weight = target.lm_head_weight
        return self.eval()

    def fuse(self, taps: Tensor) -> Tensor:
        """Map streams after the last layer [1, T, H] to the inputs of the target's `lm_head`."""
        return self.target_norm(taps)

    def run(
        self, target: PreNormDecoder, tokens: Tensor, states: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Run the slots of `step` with tokens int64 [B, T] and states [B, T, H].

        Returns logits float32 [B, T, V] and the states [B, T, H] for the slots after them.
        """
        layer, norm = self.mtp.layer, self.mtp.norm
        stream, context = self._inputs(target, tokens, states, step)
        _, normed = layer(stream, layer.input_layernorm(stream), context, norm)
        product = target.output_product if self.lm_head is None else self.lm_head
        logits = cast(product(normed), torch.float32)
        return rows_of_sequences(logits, tokens), rows_of_sequences(normed, tokens)

    def store(
        self, target: PreNormDecoder, tokens: Tensor, states: Tensor, chunk: PromptChunk
    ) -> None:
        """Store the keys and values of a prompt's slots: tokens int64 [1, T], states [1, T, H]."""
        layer, cache = self.mtp.layer, self.kv_cache
        stream, context = self._inputs(target, tokens, states, chunk)
        attention = layer.self_attn
        assert isinstance(attention, PreNormAttention)
        projected = attention.project(layer.input_layernorm(stream))
        k, v = (part.unflatten(-1, (-1, attention.head_dim)) for part in projected[1:])
        context.view.store(cache, rotate_first(attention.k_norm(k), context.rotary), v)

    def _inputs(
        self, target: PreNormDecoder, tokens: Tensor, states: Tensor, rows: Rows
    ) -> tuple[Tensor, Context]:
        """Return the layer's input [1, B * T, H], and its context."""
        embedding = target.embed(one_row_of_rows(tokens))
        view: View = view_of(rows, self.kv_cache)
        context = Context(view, self.rotary(rows.row_positions))
        return self.mtp.stream(embedding, one_row_of_rows(states)), context

    def reset_cache(self) -> None:
        """Empty the caches of all sequences."""
        self.kv_cache.reset()
