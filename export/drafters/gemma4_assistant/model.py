"""Google's assistant of Gemma 4: decoder layers that read the target's keys and values.

A row contains the embedding of a token and a state of the target's width: the embedding of token
p + 1 and the state of position p. It sees the keys 0 .. p of its sequence. The first row of a round
has the bonus token and the target's state after its final norm. Each next row has a draft and the
state that the assistant returned for the row before; it sees the same keys, because drafts are in
no cache. Math as in transformers' `modeling_gemma4_assistant.py`. Shapes: Ht the target's width, H
the assistant's, V the vocabulary.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eagle_aot.artifact import GEMMA4_ASSISTANT
from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.head_tensors import empty_linear
from eagle_aot.export.drafters.target_facts import check_target_sizes
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.attention import MASKED, additive
from eagle_aot.targets.decoder.cache_views import StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.layer import ResidualLayer
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.rope import RotaryEmbedding, apply_rotary
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import FULL, SLIDING, Gemma4Config
from eagle_aot.targets.gemma4.model import Gemma4Layer
from eagle_aot.targets.step import Step, one_row_of_rows, rows_of_sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantWiring:
    """How an assistant reads its target; implementations differ, and its files do not say.

    Queries are rotated to the position of the newest key plus `position_offset`: 1 is the bonus
    token's position, as in transformers and mlx-vlm; vLLM has 0. Sliding layers see the last
    `sliding_window + window_offset` keys: 1 in transformers, 0 in vLLM, -1 in mlx-vlm. `kv_layers`
    are the target's layers whose keys and values are read, one of each kind; None for the last of
    each kind.
    """

    position_offset: int = 1
    window_offset: int = 1
    kv_layers: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantConfig:
    """Geometry and options of an assistant, all read from its checkpoint.

    `backbone_hidden_size` is the target's width, `text` describes the assistant's own layers.
    `centroids` is the number of clusters of the vocabulary and how many of them are scored; None
    for a head that scores the whole vocabulary.
    """

    backbone_hidden_size: int
    text: Gemma4Config
    centroids: tuple[int, int] | None = None
    wiring: AssistantWiring = AssistantWiring()
    default_chain_len: int | None = None


@dataclass(frozen=True, slots=True)
class ReadContext(Context):
    """A context with the target's cache that all layers of a kind read."""

    cache: KVCache


class ReadingAttention(nn.Module):
    """Attention of queries to keys and values that the target has stored; scores are not scaled."""

    def __init__(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        super().__init__()
        self.head_dim, _ = config.dims(layer)
        width = config.num_attention_heads * self.head_dim
        self.q_proj = empty_linear(config.hidden_size, width, dtype)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype)
        self.o_proj = empty_linear(width, config.hidden_size, dtype)

    def forward(self, x: Tensor, context: ReadContext) -> Tensor:
        """Map `x` [1, T, H] to [1, T, H]; stores nothing."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        q = apply_rotary(q, context.rotary)
        return self.o_proj(context.view.attend(context.cache, q, 1.0).flatten(2))


class AssistantLayer(Gemma4Layer):
    """A layer of Gemma 4 with `ReadingAttention`."""

    def attention(
        self, config: Gemma4Config, layer: int, dtype: torch.dtype, caches: CacheSpec
    ) -> nn.Module:
        return ReadingAttention(config, layer, dtype, caches)


class Centroids(nn.Module):
    """Masks the logits of all but the `top_k` likeliest of C clusters of V / C tokens each.

    Masked tokens get `MASKED`, whose probability is 0. transformers gives them the smallest score
    of the whole call minus one, by which rows would depend on each other. The whole vocabulary is
    multiplied all the same: rows of a quantised output table cannot be gathered, and all rows of a
    step share one product.
    """

    cluster_of: Tensor

    def __init__(
        self, hidden_size: int, vocab_size: int, clusters: tuple[int, int], dtype: torch.dtype
    ) -> None:
        super().__init__()
        count, self.top_k = clusters
        self.centroids = empty_linear(hidden_size, count, dtype)
        in_order = torch.arange(vocab_size) // (vocab_size // count)
        self.register_buffer("cluster_of", in_order, persistent=False)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Map features [1, T, H] and logits float32 [1, T, V] to logits with other clusters masked.

        The lowest score of the likeliest clusters is found by removing the highest `top_k` times:
        the CUDA backend has no kernel that sorts.
        """
        scores = cast(self.centroids(features), torch.float32)
        left, least = scores, scores
        for _ in range(self.top_k):
            least = left.amax(dim=-1, keepdim=True)
            left = torch.where(left >= least, MASKED, left)
        closed = additive(scores >= least)
        return logits + closed.index_select(-1, self.cluster_of)


class Gemma4Assistant(nn.Module):
    """An assistant; `target_norm` is the target's final norm with the same weight."""

    kind = GEMMA4_ASSISTANT
    target_ids: Tensor

    def __init__(
        self, config: AssistantConfig, target_layers: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        """`target_layers` is the target's number of layers; `caches` are the target's."""
        super().__init__()
        self.config, self.target_layers = config, target_layers
        self.tap_layers: tuple[int, ...] = (target_layers,)  # the boundary after the last layer
        self.hidden_size = config.backbone_hidden_size
        self.default_chain_len = config.default_chain_len
        text, width = config.text, config.backbone_hidden_size
        hidden, eps = text.hidden_size, text.rms_norm_eps
        self.pre_projection = empty_linear(2 * width, hidden, dtype)
        self.layers = nn.ModuleList(
            AssistantLayer(text, layer, dtype, caches) for layer in range(text.num_hidden_layers)
        )
        self.norm = RMSNorm(hidden, eps, dtype)
        self.post_projection = empty_linear(hidden, width, dtype)
        self.lm_head = empty_linear(hidden, text.vocab_size, dtype)
        clusters = config.centroids
        masked = clusters and Centroids(hidden, text.vocab_size, clusters, dtype)
        self.register_module("masked_embedding", masked)
        self.target_norm = RMSNorm(width, eps, dtype)
        ropes = {SLIDING: text.sliding_rope, FULL: text.full_rope}
        dims = {text.layer_types[i]: text.dims(i)[0] for i in range(text.num_hidden_layers)}
        self.rotary = nn.ModuleDict({kind: ropes[kind].embedding(dims[kind]) for kind in dims})
        self.register_buffer("target_ids", torch.arange(text.vocab_size), persistent=False)

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless the assistant was made for this target's geometry."""
        if not isinstance(target, Gemma4Target):
            raise PairingError(
                "the assistant reads the caches of a Gemma 4 target, and of no other"
            )
        config = self.config
        check_target_sizes(target, config.backbone_hidden_size, config.text.vocab_size)
        if self.target_layers != target.num_hidden_layers:
            raise PairingError(
                f"the target has {target.num_hidden_layers} layers, the assistant was loaded for "
                f"{self.target_layers}"
            )
        for kind, layer in source_layers(self, target, config.wiring).items():
            self._check_cache(target, kind, layer)

    def _check_cache(self, target: Gemma4Target, kind: str, layer: int) -> None:
        text = self.config.text
        dims, target_dims = text.dims(text.layer_types.index(kind)), target.config.dims(layer)
        if dims != target_dims:
            raise PairingError(
                f"layer {layer} of the target has {target_dims[1]} key/value heads of "
                f"{target_dims[0]}, the assistant's {kind} layers read {dims[1]} of {dims[0]}"
            )
        if kind == SLIDING and text.sliding_window != target.config.sliding_window:
            raise PairingError(
                f"the target's window is {target.config.sliding_window}, the assistant's "
                f"{text.sliding_window}: it was made for another target"
            )

    def fuse(self, taps: Tensor) -> Tensor:
        """Map streams after the last layer [1, T, Ht] to the inputs of the target's `lm_head`."""
        return self.target_norm(taps)

    def reset_cache(self) -> None:
        """Do nothing: the assistant has no caches."""

    def run(
        self, target: Gemma4Target, tokens: Tensor, states: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Run tokens int64 [B, T] with states [B, T, Ht]. The positions and tails of `step` are
        those of each row's newest key.

        Returns logits float32 [B, T, V] and the states [B, T, Ht] for the next tokens.
        """
        embedding = target.embed(one_row_of_rows(tokens))
        stream = torch.cat((embedding, one_row_of_rows(states)), dim=-1)
        features = self._features(self.pre_projection(stream), self._contexts(target, step))
        logits = cast(self.lm_head(features), torch.float32)
        if isinstance(self.masked_embedding, Centroids):
            logits = self.masked_embedding(features, logits)
        next_states = self.post_projection(features)
        return rows_of_sequences(logits, tokens), rows_of_sequences(next_states, tokens)

    def _features(self, stream: Tensor, contexts: dict[str, ReadContext]) -> Tensor:
        """Run the stream [1, T, H] through all layers and the final norm."""
        norms = [*(layer.get_submodule("input_layernorm") for layer in self.layers), self.norm]
        normed = norms[0](stream)
        for layer, norm in zip(self.layers, norms[1:], strict=True):
            assert isinstance(layer, AssistantLayer)
            stream, normed = layer(stream, normed, contexts[layer.kind], norm)
        return normed

    def _contexts(self, target: Gemma4Target, step: Step) -> dict[str, ReadContext]:
        wiring = self.config.wiring
        positions = step.row_positions + wiring.position_offset
        contexts = {}
        for kind, cache in source_caches(self, target, wiring).items():
            embedding = self.rotary[kind]
            assert isinstance(embedding, RotaryEmbedding)
            seen = with_window(cache, wiring.window_offset)
            contexts[kind] = ReadContext(StepView(step, seen), embedding(positions), seen)
        return contexts


def source_caches(
    draft: Gemma4Assistant, target: Gemma4Target, wiring: AssistantWiring
) -> dict[str, KVCache]:
    """Return the target's cache that the assistant's layers of each kind read."""
    layers = [layer for layer in target.layers if isinstance(layer, ResidualLayer)]
    sources = source_layers(draft, target, wiring)
    return {kind: layers[layer].kv_cache for kind, layer in sources.items()}


def source_layers(
    draft: Gemma4Assistant, target: Gemma4Target, wiring: AssistantWiring
) -> dict[str, int]:
    """Return the index of the target's layer whose cache the layers of each kind read.

    Raises PairingError if the target has no layer of a kind, or `wiring` names none.
    """
    types = target.config.layer_types
    candidates = range(len(types)) if wiring.kv_layers is None else wiring.kv_layers
    last = {types[layer]: layer for layer in candidates if layer < len(types)}
    kinds = dict.fromkeys(draft.config.text.layer_types)
    for kind in kinds:
        if kind not in last:
            raise PairingError(f"the assistant reads a {kind} layer, and the target has none there")
    return {kind: last[kind] for kind in kinds}


def with_window(cache: KVCache, offset: int) -> KVCache:
    """Return the same cache with a window larger by `offset` keys, if it has a window."""
    if not cache.window or not offset:
        return cache
    seen = copy.copy(cache)
    seen.window = cache.window + offset
    return seen
